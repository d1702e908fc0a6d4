//! What is about the server and what it says: `bind`, `bufsize`, `debug`, `errors`, `health`, `log`, `loop`, `prometheus`, `reload`,
//! `timeouts`.

use super::{Mode, Row, Step, seconds};
use Step::{Ask, Bounds, Ends, Get, Idle, Log, Metrics, Questions, Until, Wait, Write};

pub(super) const ROWS: &[Row] = &[
    Row::new(
        "bind",
        ".:5399 {\n bind HERE\n forward . UP1\n}",
        ".:5399 {\n bind HERE THERE\n forward . UP1\n}",
        &[Ask("a60.test A at=THERE")],
    ),
    Row::new(
        "bind except",
        ".:5399 {\n bind HERE THERE\n forward . UP1\n}",
        ".:5399 {\n bind HERE THERE {\n  except THERE\n }\n forward . UP1\n}",
        &[Ask("a60.test A at=THERE"), Ask("a60.test A")],
    ),
    Row::new(
        "keys",
        ".:5399 {\n bind HERE\n forward . UP1\n}",
        ".:5399 {\n bind HERE\n forward . UP1\n}\nb.test:5399, dns://C.test:5399 {\n bind HERE\n forward . UP2\n}",
        &[
            Ask("a60.b.test A"),
            Ask("a60.c.test A"),
            Ask("a60.x.b.test A"),
            Ask("a60.bb.test A"),
        ],
    ),
    Row::new(
        "keys",
        ".:5399 {\n bind HERE\n forward . UP1\n}",
        ".:5399 {\n bind HERE\n forward . UP1\n}\n10.1.0.0/23:5399 {\n bind HERE\n forward . UP2\n}",
        &[
            Ask("1.0.1.10.in-addr.arpa PTR"),
            Ask("1.1.1.10.in-addr.arpa PTR"),
            Ask("1.2.1.10.in-addr.arpa PTR"),
        ],
    )
    .case("networks"),
    Row::new(
        "keys",
        ".:5399 {\n bind HERE\n forward . UP1\n}",
        ".:5398 {\n bind HERE\n whoami\n}\nb.test:5399 {\n bind HERE\n forward . UP1\n}",
        &[Ask("a60.b.test A"), Ask("a60.c.test A"), Ask("a60.c.test A tcp")],
    )
    .case("no block"),
    Row::new(
        "import",
        "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.50\"\n}",
        "import FOLDER/*.more",
        &[Ask("x.b.test A"), Ask("x.c.test A")],
    )
    .files(&[
        (
            "1.more",
            "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.51\"\n fallthrough\n}\n",
        ),
        (
            "2.more",
            "template IN A c.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.52\"\n}\n",
        ),
    ]),
    Row::new(
        "import",
        ".:5398 {\n bind HERE\n whoami\n}\n(own) {\n forward . UP1\n}\n.:5399 {\n bind HERE\n import own\n}",
        ".:5398 {\n bind HERE\n whoami\n}\n(own) {\n forward . UP2\n}\n.:5399 {\n bind HERE\n import own\n}",
        &[Ask("a60.b.test A")],
    )
    .case("a snippet"),
    Row::new(
        "variables",
        "template IN TXT b.test {\n answer \"{{ .Name }} 60 IN TXT x{$EGRET_NOBODY_SET_THIS}\"\n}",
        "template IN TXT b.test {\n answer \"{{ .Name }} 60 IN TXT x{$HOME}{%HOME%}\"\n}",
        &[Ask("x.b.test TXT")],
    ),
    Row::new(
        "bufsize",
        "forward . UP1",
        "bufsize 512\nforward . UP1",
        &[Ask("large.test A size=4096")],
    )
    .edns(),
    Row::new(
        "bufsize",
        "bufsize 4096\nforward . UP1",
        "bufsize\nforward . UP1",
        &[Ask("large.test A size=4096"), Ask("large.test A plain")],
    )
    .case("SIZE")
    .edns(),
    Row::new(
        "errors",
        "forward . HERE:9",
        "errors\nforward . HERE:9",
        &[Ask("a60.test A"), Log("plugin/errors")],
    ),
    Row::new(
        "errors",
        "forward . UP1 {\n read_timeout 300ms\n}",
        "errors\nforward . UP1 {\n read_timeout 300ms\n}",
        &[Ask("a60.test A"), Log("plugin/errors")],
    )
    .case("no answer")
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "errors consolidate",
        "errors\nforward . HERE:9",
        "errors {\n consolidate 3s \".*connection refused$\"\n}\nforward . HERE:9",
        &[Ask("a60.test A"), Ask("a60.test A"), Log("plugin/errors")],
    ),
    Row::new(
        "errors consolidate",
        "errors {\n consolidate 3s \".* i/o timeout$\"\n}\nforward . UP1 {\n read_timeout 300ms\n}",
        "errors {\n consolidate 3s \".* i/o timeout$\" warning\n}\nforward . UP1 {\n read_timeout 300ms\n}",
        &[Ask("a60.test A"), Log("plugin/errors")],
    )
    .case("LEVEL")
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "errors consolidate",
        "errors {\n consolidate 4s \".*\" info\n}\nforward . HERE:9",
        "errors {\n consolidate 4s \".*\" info show_first\n}\nforward . HERE:9",
        &[
            Ask("a60.test A"),
            Ask("a60.test A"),
            Log("plugin/errors"),
            Log("errors like"),
        ],
    )
    .case("show_first"),
    Row::new(
        "log",
        "forward . UP1",
        "log\nforward . UP1",
        &[Ask("a60.test A"), Ask("nx.test A tcp"), Log("a60.test")],
    ),
    Row::new(
        "log",
        "log\nforward . UP1",
        "log b.test\nforward . UP1",
        &[
            Ask("a60.test A"),
            Ask("a60.b.test A"),
            Log("a60.b.test"),
            Log("a60.test"),
        ],
    )
    .case("NAME"),
    Row::new(
        "log",
        "log\nforward . UP1",
        "log . \"{type} {name} {class} {proto} {rcode} {>do} {>bufsize} {>opcode} {common}\"\nforward . UP1",
        &[Ask("a60.test A do"), Log("a60.test")],
    )
    .case("FORMAT"),
    Row::new(
        "log",
        "log . {common}\nforward . UP1",
        "log . {combined}\nforward . UP1",
        &[Ask("a60.test A do"), Log("a60.test")],
    )
    .case("combined"),
    Row::new(
        "log class",
        "log\nforward . UP1",
        "log {\n class denial\n}\nforward . UP1",
        &[
            Ask("a60.test A"),
            Ask("bad.test A"),
            Ask("nx.test A"),
            Log("nx.test"),
            Log("a60.test"),
            Log("bad.test"),
        ],
    ),
    Row::new(
        "log class",
        "log {\n class success\n}\nforward . UP1",
        "log {\n class error\n}\nforward . UP1",
        &[
            Ask("nodata.test A"),
            Ask("a60.test A"),
            Ask("bad.test A"),
            Log(".test"),
            Log("a60.test"),
            Log("bad.test"),
            Log("nodata.test"),
        ],
    )
    .case("error"),
    Row::new(
        "health",
        "forward . UP1",
        "health HERE:8099\nforward . UP1",
        &[Get(8_099, "/health")],
    ),
    Row::new(
        "health lameduck",
        "health HERE:8099\nforward . UP1",
        "health HERE:8099 {\n lameduck 20s\n}\nforward . UP1",
        &[Ends],
    ),
    Row::new(
        "prometheus",
        "forward . UP1\ncache",
        "prometheus HERE:9199\ndebug\nforward . UP1\ncache\nhosts {\n 192.0.2.1 b.test\n fallthrough\n}\ntemplate IN A c.test {\n rcode NXDOMAIN\n}",
        &[
            Ask("a60.test A"),
            Ask("a60.test A"),
            Ask("nx.test AAAA tcp do"),
            Ask("bad.test TXT"),
            Ask("b.test A"),
            Ask("x.c.test A"),
            Metrics(&[
                "coredns_dns_requests_total",
                "coredns_dns_do_requests_total",
                "coredns_dns_request_size_bytes_count",
                "coredns_dns_response_size_bytes_count",
                "coredns_dns_request_duration_seconds_count",
                "coredns_cache_requests_total",
                "coredns_cache_misses_total",
                "coredns_cache_hits_total",
                "coredns_cache_entries",
                "coredns_hosts_entries",
                "coredns_template_matches_total",
                "coredns_plugin_enabled",
                "coredns_proxy_request_duration_seconds_count",
                "coredns_proxy_conn_cache_misses_total",
            ]),
        ],
    ),
    Row::new(
        "prometheus",
        "forward . UP1",
        "prometheus HERE:9199\nhealth HERE:8099\nforward . UP1",
        &[
            Ask("a60.test A"),
            Wait(seconds(2)),
            Bounds(&[
                "coredns_dns_request_duration_seconds",
                "coredns_dns_request_size_bytes",
                "coredns_dns_response_size_bytes",
                "coredns_proxy_request_duration_seconds",
                "coredns_health_request_duration_seconds",
            ]),
        ],
    )
    .case("bounds"),
    Row::new(
        "prometheus",
        "forward . UP1\ncache",
        "prometheus HERE:9199\nforward . UP1\ncache",
        &[Ask("a60.test A"), Metrics(&["coredns_dns_responses_total"])],
    )
    .case("plugin"),
    Row::new(
        "reload",
        ".:5399 {\n bind HERE\n forward . UP1\n}",
        ".:5399 {\n bind HERE\n reload 2s 0s\n forward . UP1\n}",
        &[
            Write(
                "Corefile",
                ".:5399 {\n bind HERE\n reload 2s 0s\n forward . UP2\n}",
            ),
            Until("a60.test A", "192.0.2.2"),
        ],
    ),
    // A question that goes round takes a socket each time: without a limit there are none left for other rows.
    Row::new(
        "loop",
        "errors
forward . HERE:5399 {
 max_concurrent 8
}",
        "errors
loop
forward . HERE:5399 {
 max_concurrent 8
}",
        &[Ask("a60.test A"), Log("loop")],
    ),
    Row::new(
        "timeouts idle",
        "forward . UP1",
        "timeouts {\n idle 1s\n}\nforward . UP1",
        &[Idle(seconds(5))],
    ),
    Row::new(
        "timeouts read",
        "timeouts {\n read 1h\n idle 1h\n}\nforward . UP1",
        "timeouts {\n read 1s\n idle 1h\n}\nforward . UP1",
        &[Step::Mute(seconds(5))],
    ),
    Row::new(
        "timeouts maxtcpqueries",
        "forward . UP1",
        "timeouts {\n maxtcpqueries 2\n}\nforward . UP1",
        &[Questions(4)],
    ),
    Row::new(
        "debug",
        "forward . HERE:9",
        "debug
forward . HERE:9",
        &[Ask("a60.test A"), Log("[DEBUG]")],
    ),
];
