//! `rewrite`, each form of it.

use super::{Row, Step};
use Step::Ask;

const NAMES: &[Step] = &[Ask("a60.old.test A"), Ask("a60.x.test A"), Ask("nx.old.test A")];

pub(super) const ROWS: &[Row] = &[
    Row::new("rewrite name", "forward . UP1", "rewrite name a60.old.test a300.new.test\nforward . UP1", NAMES).case("name"),
    Row::new("rewrite name", "forward . UP1", "rewrite name exact a60.old.test a300.new.test\nforward . UP1", NAMES).case("name exact"),
    Row::new("rewrite name", "forward . UP1", "rewrite name prefix a60.old. a300.\nforward . UP1", NAMES).case("name prefix"),
    Row::new("rewrite name", "forward . UP1", "rewrite name suffix .old.test .new.test\nforward . UP1", NAMES).case("name suffix"),
    Row::new("rewrite name", "forward . UP1", "rewrite name substring .old. .new.\nforward . UP1", NAMES).case("name substring"),
    Row::new("rewrite name", "forward . UP1", "rewrite name regex (.*)[.]old[.]test {1}.new.test\nforward . UP1", NAMES).case("name regex"),
    Row::new("rewrite name", "rewrite name suffix .old.test .new.test\nforward . UP1", "rewrite name suffix .old.test .new.test answer auto\nforward . UP1", NAMES).case("answer auto"),
    Row::new(
        "rewrite name",
        "rewrite name regex (.*)[.]old[.]test {1}.new.test answer name (.*)[.]new[.]test {1}.old.test\nforward . UP1",
        "rewrite name regex (.*)[.]old[.]test {1}.new.test answer name (.*)[.]new[.]test {1}.third.test\nforward . UP1",
        NAMES,
    )
    .case("answer name"),
    Row::new(
        "rewrite name",
        "rewrite stop {\n name regex (.*)[.]old[.]test {1}.new.test\n answer name (.*)[.]new[.]test {1}.old.test\n}\nforward . UP1",
        "rewrite stop {\n name regex (.*)[.]old[.]test {1}.new.test\n answer name (.*)[.]new[.]test {1}.old.test\n answer value (.*)[.]target[.]test {1}.shown.test\n}\nforward . UP1",
        &[Ask("alias.old.test A")],
    )
    .case("answer value"),
    Row::new("rewrite type", "forward . UP1", "rewrite type A AAAA\nforward . UP1", &[Ask("both.test A"), Ask("both.test AAAA")]).case("type"),
    Row::new("rewrite class", "forward . UP1", "rewrite class CH IN\nforward . UP1", &[Ask("a60.test A chaos"), Ask("a60.test A")]).case("class"),
    Row::new("rewrite ttl", "forward . UP1", "rewrite ttl a60.test 300\nforward . UP1", &[Ask("a60.test A"), Ask("a30.test A")]).case("ttl"),
    Row::new("rewrite ttl", "rewrite ttl suffix .test 10-\nforward . UP1", "rewrite ttl suffix .test 30-60\nforward . UP1", &[Ask("a5.test A"), Ask("a300.test A"), Ask("a60.test A")]).case("ttl range"),
    Row::new("rewrite cname", "forward . UP1", "rewrite cname exact a60.target.test. a300.target.test.\nforward . UP1", &[Ask("alias.test A"), Ask("a60.test A")]).case("cname"),
    Row::new("rewrite rcode", "forward . UP1", "rewrite rcode suffix .test SERVFAIL NXDOMAIN\nforward . UP1", &[Ask("bad.test A"), Ask("refused.test A"), Ask("a60.test A")]).case("rcode"),
    Row::new("rewrite edns0", "forward . UP1", "rewrite edns0 local set 0xffee hello\nforward . UP1", &[Ask("a60.test A")]).case("edns0 local").edns(),
    Row::new("rewrite edns0", "rewrite edns0 local set 0xffee hello\nforward . UP1", "rewrite edns0 local replace 0xffee hello\nforward . UP1", &[Ask("a60.test A")]).case("edns0 local replace").edns(),
    Row::new("rewrite edns0", "forward . UP1", "rewrite edns0 nsid set\nforward . UP1", &[Ask("a60.test A")]).case("edns0 nsid").edns(),
    Row::new("rewrite edns0", "forward . UP1", "rewrite edns0 subnet set 24 56\nforward . UP1", &[Ask("a60.test A")]).case("edns0 subnet").edns(),
    Row::new("rewrite edns0", "forward . UP1", "rewrite edns0 local append 0xffee hello revert\nforward . UP1", &[Ask("a60.test A")]).case("edns0 local append revert").edns(),
    Row::new("rewrite edns0", "rewrite continue edns0 local set 0xffee hello\nforward . UP1", "rewrite continue edns0 local set 0xffee hello\nrewrite edns0 local unset 0xffee\nforward . UP1", &[Ask("a60.test A")]).case("edns0 local unset").edns(),
    Row::new("rewrite ttl", "forward . UP1", "rewrite ttl regex (.*)[.]old[.]test -7\nforward . UP1", NAMES).case("ttl regex"),
    Row::new("rewrite ttl", "forward . UP1", "rewrite ttl prefix a60.old. 7\nforward . UP1", NAMES).case("ttl prefix"),
    Row::new("rewrite ttl", "forward . UP1", "rewrite ttl substring .old. 7\nforward . UP1", NAMES).case("ttl substring"),
    Row::new("rewrite rcode", "forward . UP1", "rewrite rcode exact nx.old.test NXDOMAIN 5\nforward . UP1", NAMES).case("rcode exact"),
    Row::new("rewrite rcode", "forward . UP1", "rewrite rcode regex ^nx.* NXDOMAIN NOERROR\nforward . UP1", NAMES).case("rcode regex"),
    Row::new("rewrite cname", "forward . UP1", "rewrite cname regex (.*)[.]target[.]test. {1}.other.test.\nforward . UP1", &[Ask("alias.test A"), Ask("a60.test A")]).case("cname regex"),
    Row::new("rewrite cname", "forward . UP1", "rewrite cname suffix target.test. other.test.\nforward . UP1", &[Ask("alias.test A"), Ask("alias.test CNAME")]).case("cname suffix"),
    Row::new(
        "rewrite name",
        "rewrite stop name a60.old.test a300.mid.test\nrewrite name a300.mid.test a5.last.test\nforward . UP1",
        "rewrite continue name a60.old.test a300.mid.test\nrewrite name a300.mid.test a5.last.test\nforward . UP1",
        NAMES,
    )
    .case("continue"),
];
