//! What answers without upstreams, or changes their answers: `template`, `hosts`, `dns64`, `loadbalance`, `whoami`.

use super::{Row, Step};
use Step::{Ask, First, Until, Write};

const HOSTS: &[(&str, &str)] = &[("hosts", "192.0.2.77 from.test\n")];
const WEIGHTS: &[(&str, &str)] = &[("weights", "many.test\n198.51.2.1 255\n")];
const MANY: &[Step] = &[First {
    times: 40,
    question: "many.test A",
}];
const USUAL: Step = Step::Usual {
    times: 40,
    question: "many.test A",
};

pub(super) const ROWS: &[Row] = &[
    Row::new(
        "template",
        "forward . UP1",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n}\nforward . UP1",
        &[Ask("x.b.test A"), Ask("a60.test A"), Ask("x.b.test AAAA")],
    ),
    Row::new(
        "template match",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n fallthrough\n}\nforward . UP1",
        "template IN A b.test {\n match ^n(\\d+)[.]b[.]test[.]$\n answer \"{{ .Name }} 60 IN A 192.0.2.{{ index .Match 1 }}\"\n fallthrough\n}\nforward . UP1",
        &[Ask("n7.b.test A"), Ask("x.b.test A")],
    ),
    Row::new(
        "template answer",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n}",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.51\"\n answer \"{{ .Name }} 60 {{ .Class }} {{ .Type }} 192.0.2.52\"\n}",
        &[Ask("x.b.test A")],
    ),
    // A key of DKIM is longer than one text of a record.
    Row::new(
        "template answer",
        "template IN TXT b.test {\n answer \"{{ .Name }} 60 IN TXT short\"\n}",
        "template IN TXT b.test {\n answer \"{{ .Name }} 60 IN TXT 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef \\\"and more\\\"\"\n}",
        &[Ask("x.b.test TXT")],
    )
    .case("a long text"),
    Row::new(
        "template additional",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n}",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n additional \"more.test 60 IN A 192.0.2.51\"\n}",
        &[Ask("x.b.test A")],
    ),
    Row::new(
        "template authority",
        "template IN A b.test {\n rcode NXDOMAIN\n}",
        "template IN A b.test {\n rcode NXDOMAIN\n authority \"{{ .Zone }} 60 IN SOA ns.test. admin.test. 1 2 3 4 5\"\n}",
        &[Ask("x.b.test A")],
    ),
    Row::new(
        "template rcode",
        "template IN A b.test {\n rcode NXDOMAIN\n}",
        "template IN A b.test {\n rcode REFUSED\n}",
        &[Ask("x.b.test A")],
    ),
    Row::new(
        "template fallthrough",
        "template IN A b.test {\n match nothing\n rcode REFUSED\n}\nforward . UP1",
        "template IN A b.test {\n match nothing\n rcode REFUSED\n fallthrough c.b.test\n}\nforward . UP1",
        &[Ask("a60.b.test A"), Ask("a60.c.b.test A")],
    ),
    Row::new(
        "template ederror",
        "template IN A b.test {\n rcode NXDOMAIN\n}",
        "template IN A b.test {\n rcode NXDOMAIN\n ederror 21 \"not here\"\n}",
        &[Ask("x.b.test A")],
    )
    .edns(),
    Row::new(
        "hosts",
        "forward . UP1",
        "hosts {\n 192.0.2.88 b.test c.test\n fallthrough\n}\nforward . UP1",
        &[
            Ask("b.test A"),
            Ask("b.test AAAA"),
            Ask("c.test A"),
            Ask("88.2.0.192.in-addr.arpa PTR"),
            Ask("a60.test A"),
        ],
    ),
    Row::new(
        "hosts",
        "hosts FOLDER/hosts {\n fallthrough\n}\nforward . UP1",
        "hosts FOLDER/hosts other.test {\n fallthrough\n}\nforward . UP1",
        &[Ask("from.test A")],
    )
    .case("FILE ZONES")
    .files(HOSTS),
    Row::new(
        "hosts ttl",
        "hosts {\n 192.0.2.88 b.test\n}",
        "hosts {\n 192.0.2.88 b.test\n ttl 60\n}",
        &[Ask("b.test A")],
    ),
    Row::new(
        "hosts no_reverse",
        "hosts {\n 192.0.2.88 b.test\n}",
        "hosts {\n 192.0.2.88 b.test\n no_reverse\n}",
        &[Ask("88.2.0.192.in-addr.arpa PTR"), Ask("b.test A")],
    ),
    Row::new(
        "hosts reload",
        "hosts FOLDER/hosts {\n reload 0s\n}",
        "hosts FOLDER/hosts {\n reload 200ms\n}",
        &[
            Ask("from.test A"),
            Write("hosts", "192.0.2.79 from.test again.test\n"),
            Until("from.test A", "192.0.2.79"),
        ],
    )
    .files(HOSTS),
    Row::new(
        "hosts fallthrough",
        "hosts {\n 192.0.2.88 b.test\n}\nforward . UP1",
        "hosts {\n 192.0.2.88 b.test\n fallthrough c.test\n}\nforward . UP1",
        &[Ask("a60.test A"), Ask("a60.c.test A"), Ask("b.test AAAA")],
    ),
    Row::new(
        "hosts fallthrough_unsupported",
        "hosts {\n 192.0.2.88 both.test\n fallthrough\n}\nforward . UP1",
        "hosts {\n 192.0.2.88 both.test\n fallthrough\n fallthrough_unsupported\n}\nforward . UP1",
        &[Ask("both.test AAAA"), Ask("both.test TXT"), Ask("both.test A")],
    ),
    Row::new(
        "dns64",
        "forward . UP1",
        "dns64 {\n allow_ipv4\n}\nforward . UP1",
        &[Ask("four.test AAAA"), Ask("both.test AAAA"), Ask("nx.test AAAA")],
    ),
    Row::new(
        "dns64 prefix",
        "dns64 {\n allow_ipv4\n}\nforward . UP1",
        "dns64 {\n allow_ipv4\n prefix 2001:db8:64::/96\n}\nforward . UP1",
        &[Ask("four.test AAAA")],
    ),
    Row::new(
        "dns64 translate_all",
        "dns64 {\n allow_ipv4\n}\nforward . UP1",
        "dns64 {\n allow_ipv4\n translate_all\n}\nforward . UP1",
        &[Ask("both.test AAAA")],
    ),
    Row::new(
        "dns64 allow_ipv4",
        "dns64 64:ff9b::/96\nforward . UP1",
        "dns64 {\n allow_ipv4\n}\nforward . UP1",
        &[Ask("four.test AAAA")],
    ),
    Row::new(
        "loadbalance",
        "forward . UP1\ncache",
        "forward . UP1\ncache\nloadbalance",
        MANY,
    ),
    Row::new(
        "loadbalance",
        "forward . UP1\ncache",
        "forward . UP1\ncache\nloadbalance weighted FOLDER/weights",
        &[Ask("many.test A"), USUAL],
    )
    .case("weighted")
    .files(&[("weights", "many.test\n198.51.2.1 255\n")]),
    Row::new(
        "loadbalance reload",
        "forward . UP1\nloadbalance weighted FOLDER/weights {\n reload 0s\n}",
        "forward . UP1\nloadbalance weighted FOLDER/weights {\n reload 200ms\n}",
        &[
            Write("weights", "many.test\n198.51.3.1 255\n"),
            Step::Wait(super::seconds(3)),
            USUAL,
        ],
    )
    .files(WEIGHTS),
    Row::new(
        "loadbalance prefer",
        "forward . UP1",
        "forward . UP1\nloadbalance round_robin {\n prefer 198.51.3.0/24\n}",
        MANY,
    ),
    Row::new(
        "whoami",
        "forward . UP1",
        "whoami",
        &[Ask("x.test A"), Ask("x.test TXT tcp")],
    ),
];
