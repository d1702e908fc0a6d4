//! Texts that are accepted, with a field of the plan that says what they mean.

use serde_json::{Value, json};

/// Directives, and a field of their block.
pub(crate) fn in_a_block() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "cache",
            "/cache/success",
            json!({"entries": 9984, "maxTtl": "1h", "minTtl": "5s"}),
        ),
        (
            "cache",
            "/cache/denial",
            json!({"entries": 9984, "maxTtl": "30m", "minTtl": "5s"}),
        ),
        ("cache", "/cache/servfail", json!("5s")),
        ("cache 30", "/cache/denial/maxTtl", json!("30s")),
        (
            "cache 30 a.example 10.0.0.0/23",
            "/cache/zones",
            json!(["a.example.", "0.0.10.in-addr.arpa.", "1.0.10.in-addr.arpa."]),
        ),
        ("cache example.org", "/cache/zones", json!(["example.org."])),
        (
            "cache {\nsuccess 1000 60 0\n}",
            "/cache/success",
            json!({"entries": 1024, "maxTtl": "1m", "minTtl": "0s"}),
        ),
        (
            "cache 100 {\ndenial 3000\n}",
            "/cache/denial",
            json!({"entries": 2816, "maxTtl": "1m40s", "minTtl": "5s"}),
        ),
        (
            "cache {\nprefetch 3\n}",
            "/cache/prefetch",
            json!({"amount": 3, "within": "1m", "percentage": 10}),
        ),
        (
            "cache {\nprefetch 3 10s 90%\n}",
            "/cache/prefetch",
            json!({"amount": 3, "within": "10s", "percentage": 90}),
        ),
        ("cache {\nprefetch 0\n}", "/cache/prefetch", Value::Null),
        ("cache {\nserve_stale\n}", "/cache/serveStale/upTo", json!("1h")),
        (
            "cache {\nserve_stale 2h Verify\n}",
            "/cache/serveStale/refresh",
            json!({"verify": {"timeout": null}}),
        ),
        (
            "cache {\nserve_stale 2h verify 0 30s\n}",
            "/cache/serveStale/refresh",
            json!({"verify": {"timeout": null}}),
        ),
        (
            "cache {\nserve_stale 2h verify 100ms\n}",
            "/cache/serveStale/refresh",
            json!({"verify": {"timeout": "100ms"}}),
        ),
        (
            "cache {\nserve_stale 2h immediate 30s 1m\n}",
            "/cache/serveStale/responseTtl",
            json!("30s"),
        ),
        (
            "cache {\nserve_stale 2h immediate 30s 1m\n}",
            "/cache/serveStale/failureRecheck",
            json!("1m"),
        ),
        (
            "cache {\nserve_stale_policy prefer_positive\nserve_stale\n}",
            "/cache/serveStale/prefersPositive",
            json!(true),
        ),
        ("cache {\nservfail 0\n}", "/cache/servfail", json!("0s")),
        (
            "cache {\ndisable denial\n}",
            "/cache/disabled/denial",
            json!(["."]),
        ),
        (
            "cache {\ndisable success a.example b.example\n}",
            "/cache/disabled/success",
            json!(["a.example.", "b.example."]),
        ),
        ("cache {\nkeepttl\n}", "/cache/keepTtl", json!(true)),
        ("cache { keepttl }", "/cache/keepTtl", json!(true)),
        ("forward . 192.0.2.1", "/forward/0/to", json!(["192.0.2.1:53"])),
        (
            "forward . 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7 192.0.2.8 192.0.2.9 192.0.2.10 192.0.2.11 192.0.2.12 192.0.2.13 192.0.2.14 192.0.2.15",
            "/forward/0/to/14",
            json!("192.0.2.15:53"),
        ),
        ("forward . 192.0.2.1", "/forward/0/policy", json!("random")),
        (
            "forward . 192.0.2.1",
            "/forward/0/maxConnectAttempts",
            Value::Null,
        ),
        (
            "forward . 192.0.2.1",
            "/forward/0/healthCheck",
            json!({"interval": "500ms", "recursion": true, "domain": "."}),
        ),
        (
            "forward . 2001:db8::1",
            "/forward/0/to",
            json!(["[2001:db8::1]:53"]),
        ),
        (
            "forward . [2001:db8::1]",
            "/forward/0/to",
            json!(["[2001:db8::1]:53"]),
        ),
        (
            "forward . dns://192.0.2.1:5353 192.0.2.1:5353",
            "/forward/0/to",
            json!(["192.0.2.1:5353"]),
        ),
        (
            "forward . tls://9.9.9.9",
            "/forward/0/to",
            json!(["tls://9.9.9.9:853"]),
        ),
        (
            "forward . tls://9.9.9.9%dns.quad9.net:8853",
            "/forward/0/to",
            json!(["tls://9.9.9.9%dns.quad9.net:8853"]),
        ),
        (
            "forward . tls://2620:fe::fe%dns.quad9.net:8853",
            "/forward/0/to",
            json!(["tls://[2620:fe::fe%dns.quad9.net]:8853"]),
        ),
        (
            "forward . kube-dns.kube-system.svc.cluster.local",
            "/forward/0/to",
            json!(["kube-dns.kube-system.svc.cluster.local.:53"]),
        ),
        (
            "forward . /etc/resolv.conf",
            "/forward/0/to",
            json!(["/etc/resolv.conf"]),
        ),
        (
            "forward 10.0.0.0/24 192.0.2.1",
            "/forward/0/from",
            json!("0.0.10.in-addr.arpa."),
        ),
        (
            "forward . 192.0.2.1\nforward a. 192.0.2.2",
            "/forward/1/from",
            json!("a."),
        ),
        (
            "forward . 192.0.2.1 {\nexcept a.example\nexcept b.example\n}",
            "/forward/0/except",
            json!(["a.example.", "b.example."]),
        ),
        (
            "forward . 192.0.2.1 {\nforce_tcp\n}",
            "/forward/0/forceTcp",
            json!(true),
        ),
        (
            "forward . 192.0.2.1 {\nprefer_udp\n}",
            "/forward/0/preferUdp",
            json!(true),
        ),
        (
            "forward . 192.0.2.1 {\nexpire 1m\n}",
            "/forward/0/expire",
            json!("1m"),
        ),
        (
            "forward . 192.0.2.1 {\nmax_age 10s\n}",
            "/forward/0/maxAge",
            json!("10s"),
        ),
        (
            "forward . 192.0.2.1 {\nmax_idle_conns 3\n}",
            "/forward/0/maxIdleConnections",
            json!(3),
        ),
        (
            "forward . 192.0.2.1 {\nread_timeout 5s\n}",
            "/forward/0/readTimeout",
            json!("5s"),
        ),
        (
            "forward . 192.0.2.1 {\nmax_fails 0\n}",
            "/forward/0/maxFails",
            json!(0),
        ),
        (
            "forward . 192.0.2.1 {\nmax_connect_attempts 0\n}",
            "/forward/0/maxConnectAttempts",
            json!(0),
        ),
        (
            "forward . 192.0.2.1 {\ntls\n}",
            "/forward/0/tls",
            json!({"authorities": null, "identity": null, "serverName": null}),
        ),
        (
            "forward . 192.0.2.1 {\ntls ca\n}",
            "/forward/0/tls/authorities",
            json!("ca"),
        ),
        (
            "forward . 192.0.2.1 {\ntls cert key\n}",
            "/forward/0/tls/identity",
            json!(["cert", "key"]),
        ),
        (
            "forward . 192.0.2.1 {\ntls cert key ca\n}",
            "/forward/0/tls/authorities",
            json!("ca"),
        ),
        (
            "forward . 192.0.2.1 {\ntls_servername a.example\n}",
            "/forward/0/tls/serverName",
            json!("a.example"),
        ),
        (
            "forward . 192.0.2.1 {\npolicy round_robin\n}",
            "/forward/0/policy",
            json!("round_robin"),
        ),
        (
            "forward . 192.0.2.1 {\npolicy sequential\n}",
            "/forward/0/policy",
            json!("sequential"),
        ),
        (
            "forward . 192.0.2.1 {\nhealth_check 5s no_rec domain a.example\n}",
            "/forward/0/healthCheck",
            json!({"interval": "5s", "recursion": false, "domain": "a.example."}),
        ),
        (
            "forward . 192.0.2.1 {\nmax_concurrent 1000\n}",
            "/forward/0/maxConcurrent",
            json!(1000),
        ),
        (
            "forward . 192.0.2.1 {\nnext nxdomain SERVFAIL\n}",
            "/forward/0/next",
            json!(["NXDOMAIN", "SERVFAIL"]),
        ),
        (
            "forward . 192.0.2.1 {\nnext_on_nodata\n}",
            "/forward/0/nextOnNodata",
            json!(true),
        ),
        (
            "forward . 192.0.2.1 {\nfailfast_all_unhealthy_upstreams\n}",
            "/forward/0/failsFast",
            json!(true),
        ),
        (
            "forward . 192.0.2.1 {\nfailover REFUSED\n}",
            "/forward/0/failover",
            json!(["REFUSED"]),
        ),
        (
            "forward . 192.0.2.1 {\nsource_address 192.0.2.9\n}",
            "/forward/0/source",
            json!("192.0.2.9"),
        ),
        (
            "forward . a.example {\nresolver 192.0.2.53 [2001:db8::53]:5353\n}",
            "/forward/0/resolver",
            json!(["192.0.2.53:53", "[2001:db8::53]:5353"]),
        ),
        ("bufsize", "/bufsize", json!(1232)),
        ("bufsize 4096", "/bufsize", json!(4096)),
        ("debug\ndebug", "/debug", json!(true)),
        ("whoami", "/whoami", json!(true)),
        ("loop", "/loop", json!(true)),
        ("prometheus", "/prometheus", json!(true)),
        (
            "bind 192.0.2.1 eth0 {\nexcept 192.0.2.2\n}\nbind ::1",
            "/bind",
            json!([{"to": ["192.0.2.1", "eth0"], "except": ["192.0.2.2"]}, {"to": ["::1"], "except": []}]),
        ),
        (
            "timeouts {\nread 5\nwrite 1500ms\n}",
            "/timeouts",
            json!({"read": "5s", "write": "1500ms", "idle": "10s", "queriesPerConnection": null}),
        ),
        (
            "timeouts {\nidle 24h\nmaxtcpqueries 128\n}\ntimeouts {\nread 1s\n}",
            "/timeouts",
            json!({"read": "1s", "write": "5s", "idle": "24h", "queriesPerConnection": 128}),
        ),
        (
            "timeouts {\nmaxtcpqueries -1\n}",
            "/timeouts/queriesPerConnection",
            Value::Null,
        ),
        (
            "errors",
            "/errors",
            json!({"stacktrace": false, "consolidate": []}),
        ),
        (
            "errors stdout {\nstacktrace\n}",
            "/errors/stacktrace",
            json!(true),
        ),
        (
            "errors {\nconsolidate 5m \".* timeout$\" warning show_first\n}",
            "/errors/consolidate/0",
            json!({"every": "5m", "errors": ".* timeout$", "level": "warning", "showFirst": true}),
        ),
        (
            "errors {\nconsolidate 5m a\nconsolidate 1m b show_first\n}",
            "/errors/consolidate/1",
            json!({"every": "1m", "errors": "b", "level": "error", "showFirst": true}),
        ),
        ("log", "/log/0/zones", json!(["."])),
        ("log", "/log/0/classes", json!(["all"])),
        (
            "log a.example {\nclass denial\nclass error\n}",
            "/log/0/classes",
            json!(["denial", "error"]),
        ),
        (
            "log a.example b.example {>id}",
            "/log/0",
            json!({"zones": ["a.example.", "b.example."], "format": "{>id}", "classes": ["all"]}),
        ),
        (
            "log . {combined}",
            "/log/0/format",
            json!(
                "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} {>rflags} {rsize} {duration} \"{>opcode}\""
            ),
        ),
        (
            "dns64",
            "/dns64",
            json!({"prefix": "64:ff9b::/96", "translateAll": false, "allowIpv4": false}),
        ),
        (
            "dns64 2001:db8:1:2::/64",
            "/dns64/prefix",
            json!("2001:db8:1:2::/64"),
        ),
        (
            "dns64 {\nprefix 2001:db8::/32\ntranslate_all\nallow_ipv4\n}",
            "/dns64",
            json!({"prefix": "2001:db8::/32", "translateAll": true, "allowIpv4": true}),
        ),
        (
            "loadbalance",
            "/loadbalance",
            json!({"weights": null, "prefer": []}),
        ),
        (
            "loadbalance round_robin {\nprefer 10.0.0.0/8 2001:db8::/32\n}",
            "/loadbalance/prefer",
            json!(["10.0.0.0/8", "2001:db8::/32"]),
        ),
        (
            "loadbalance weighted /w",
            "/loadbalance/weights",
            json!({"file": "/w", "reload": "30s"}),
        ),
        (
            "loadbalance weighted /w {\nreload 0\n}",
            "/loadbalance/weights/reload",
            json!("0s"),
        ),
        (
            "hosts",
            "/hosts",
            json!({"file": "/etc/hosts", "zones": [], "inline": [], "ttl": "1h", "reverse": true, "reload": "5s", "fallthrough": false, "fallthroughUnsupported": false}),
        ),
        (
            "hosts /h a.example {\nttl 60\nreload 0\nno_reverse\nfallthrough\nfallthrough_unsupported\n}",
            "/hosts",
            json!({"file": "/h", "zones": ["a.example."], "inline": [], "ttl": "1m", "reverse": false, "reload": "0s", "fallthrough": true, "fallthroughUnsupported": true}),
        ),
        (
            "hosts {\n192.0.2.1 A.example b.example\n2001:db8::1%eth0 a.example\nfallthrough in-addr.arpa\n}",
            "/hosts/inline",
            json!([{"address": "192.0.2.1", "names": ["a.example.", "b.example."]}, {"address": "2001:db8::1", "names": ["a.example."]}]),
        ),
        (
            "hosts {\nfallthrough in-addr.arpa 2001:db8::/32\n}",
            "/hosts/fallthrough",
            json!(["in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa."]),
        ),
        (
            "template IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}",
            "/template/0/answer",
            json!(["{{ .Name }} 60 IN A 192.0.2.1"]),
        ),
        (
            "template ANY ANY a.example b.example {\nrcode NXDOMAIN\n}",
            "/template/0",
            json!({"class": "ANY", "type": "ANY", "zones": ["a.example.", "b.example."], "match": [], "answer": [], "additional": [], "authority": [], "rcode": "NXDOMAIN", "extendedError": null, "fallthrough": false}),
        ),
        (
            "template IN HTTPS {\nmatch a b\nmatch c\nederror 15 \"not here\"\nfallthrough\n}",
            "/template/0/match",
            json!(["a", "b", "c"]),
        ),
        (
            "template IN HTTPS {\nederror 15 \"not here\"\n}",
            "/template/0/extendedError",
            json!([15, "not here"]),
        ),
        (
            "template IN MX\ntemplate IN TXT",
            "/template/1/type",
            json!("TXT"),
        ),
        (
            "rewrite name a.example B.example.",
            "/rewrite/0",
            json!({"goesOn": false, "rule": {"name": {"of": {"exact": "a.example."}, "to": "b.example.", "answers": ["auto"]}}}),
        ),
        (
            "rewrite continue name suffix .a. .b. answer auto",
            "/rewrite/0",
            json!({"goesOn": true, "rule": {"name": {"of": {"suffix": ".a."}, "to": ".b.", "answers": ["auto"]}}}),
        ),
        (
            "rewrite name regex (.*)\\.a {1}.b answer name (.*)\\.b {1}.a answer value c d",
            "/rewrite/0/rule/name",
            json!({"of": {"regex": "(.*)\\.a"}, "to": "{1}.b.", "answers": [{"name": ["(.*)\\.b", "{1}.a."]}, {"value": ["c", "d."]}]}),
        ),
        (
            "rewrite {\nname regex (.*)\\.a {1}.b\nanswer name (.*)\\.b {1}.a\n}",
            "/rewrite/0/rule/name/answers",
            json!([{"name": ["(.*)\\.b", "{1}.a."]}]),
        ),
        (
            "rewrite stop {\ntype ANY HINFO\n}",
            "/rewrite/0/rule",
            json!({"type": {"from": "ANY", "to": "HINFO"}}),
        ),
        (
            "rewrite class ch in",
            "/rewrite/0/rule",
            json!({"class": {"from": "CH", "to": "IN"}}),
        ),
        (
            "rewrite edns0 local set 0xffee 0x61 revert",
            "/rewrite/0/rule/edns",
            json!({"field": {"local": [65518, "0x61"]}, "action": "set", "revert": true}),
        ),
        (
            "rewrite edns0 local append 65001 {client_ip}",
            "/rewrite/0/rule/edns/field",
            json!({"local": [65001, "{client_ip}"]}),
        ),
        (
            "rewrite edns0 local unset 0xffee",
            "/rewrite/0/rule/edns/action",
            json!("unset"),
        ),
        (
            "rewrite edns0 nsid replace",
            "/rewrite/0/rule/edns/field",
            json!("nsid"),
        ),
        (
            "rewrite edns0 subnet set 24 56",
            "/rewrite/0/rule/edns/field",
            json!({"subnet": [24, 56]}),
        ),
        (
            "rewrite ttl a.example 30",
            "/rewrite/0/rule/ttl",
            json!({"of": {"exact": "a.example."}, "to": {"atLeast": 30, "atMost": 30}}),
        ),
        (
            "rewrite ttl regex .* 30-",
            "/rewrite/0/rule/ttl/to",
            json!({"atLeast": 30, "atMost": 2_147_483_647u32}),
        ),
        (
            "rewrite ttl suffix a -30",
            "/rewrite/0/rule/ttl/to",
            json!({"atLeast": 0, "atMost": 30}),
        ),
        (
            "rewrite cname a.example b.example",
            "/rewrite/0/rule/cname",
            json!({"of": {"exact": "a.example."}, "to": "b.example."}),
        ),
        (
            "rewrite cname suffix A b",
            "/rewrite/0/rule/cname",
            json!({"of": {"suffix": "a"}, "to": "b"}),
        ),
        (
            "rewrite rcode a.example NXDOMAIN 0",
            "/rewrite/0/rule/rcode",
            json!({"of": {"exact": "a.example."}, "from": "NXDOMAIN", "to": "NOERROR"}),
        ),
        (
            "rewrite rcode regex .* 12 servfail",
            "/rewrite/0/rule/rcode/from",
            json!("12"),
        ),
        // Words.
        ("{$WHAT} 30", "/cache/success/maxTtl", json!("30s")),
        ("{%WHAT%} 30", "/cache/success/maxTtl", json!("30s")),
        ("forward . {$OTHER}", "/forward/0/to", json!(["192.0.2.53:53"])),
        ("import more.conf", "/cache/success/maxTtl", json!("30s")),
        ("import /etc/coredns/*.override", "/debug", json!(true)),
        (
            "hosts \"/with \\\"blanks\\\" and \\n\" # not this",
            "/hosts/file",
            json!("/with \"blanks\" and \\n"),
        ),
        ("hosts \"/a\nb\" a.example", "/hosts/zones", json!(["a.example."])),
    ]
}

/// Whole texts, and a field of the plan.
pub(crate) fn texts() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (".", "/servers/0/zones", json!(["."])),
        (". {\n}", "/servers/0/port", json!(53)),
        (
            "dns://a.example:5353\nwhoami\ncache",
            "/servers/0/port",
            json!(5353),
        ),
        (
            "dns://a.example:5353\nwhoami\ncache",
            "/servers/0/whoami",
            json!(true),
        ),
        (
            "a.example, b.example,\nC.example {\n}",
            "/servers/0/zones",
            json!(["a.example.", "b.example.", "c.example."]),
        ),
        ("a.example\n{\n}", "/servers/0/zones", json!(["a.example."])),
        (
            "10.0.0.0/24 {\n}",
            "/servers/0/zones",
            json!(["0.0.10.in-addr.arpa."]),
        ),
        (
            "10.0.0.77/22:5353 {\n}",
            "/servers/0/zones",
            json!([
                "0.0.10.in-addr.arpa.",
                "1.0.10.in-addr.arpa.",
                "2.0.10.in-addr.arpa.",
                "3.0.10.in-addr.arpa."
            ]),
        ),
        (
            "10.0.0.1/32 {\n}",
            "/servers/0/zones",
            json!(["1.0.0.10.in-addr.arpa."]),
        ),
        ("0.0.0.0/0 {\n}", "/servers/0/zones", json!(["in-addr.arpa."])),
        (
            "2001:db8::/31 {\n}",
            "/servers/0/zones",
            json!(["8.b.d.0.1.0.0.2.ip6.arpa.", "9.b.d.0.1.0.0.2.ip6.arpa."]),
        ),
        ("2001:db8::/32:5353 {\n}", "/servers/0/port", json!(5353)),
        (
            "\u{feff}. {\r\n  cache 30\r\n}\r\n",
            "/servers/0/cache/success/maxTtl",
            json!("30s"),
        ),
        (
            "(s) {\n  cache 30\n  forward . 192.0.2.1 {\n    force_tcp\n  }\n}\n. {\n  import s\n  debug\n}",
            "/servers/0/forward/0/forceTcp",
            json!(true),
        ),
        (
            "(s) {\n  cache 30\n}\n. {\n  whoami\n  import s\n  debug\n}",
            "/servers/0/debug",
            json!(true),
        ),
        (
            "(o) {\n  force_tcp\n}\n. {\n  forward . 192.0.2.1 {\n    expire 1s\n    import o\n    max_fails 1\n  }\n}",
            "/servers/0/forward/0/maxFails",
            json!(1),
        ),
        (
            "(s) { debug }\n. {\n  import s\n}",
            "/servers/0/debug",
            json!(true),
        ),
        ("import other/zones.conf", "/servers/0/whoami", json!(true)),
        (
            "a. {\n reload 10s\n}\nb. {\n reload\n}",
            "/reload",
            json!({"interval": "30s", "jitter": "15s"}),
        ),
        (
            ". {\n reload 20s\n}",
            "/reload",
            json!({"interval": "20s", "jitter": "10s"}),
        ),
        (". {\n reload 20s 0\n}", "/reload/jitter", json!("0s")),
        (". {\n}", "/reload", Value::Null),
        (
            ". {\n health\n}",
            "/health",
            json!([{"address": "[::]:8080", "lameduck": "0s"}]),
        ),
        (
            ". {\n health localhost:8091 {\n lameduck 5s\n}\n}",
            "/health",
            json!([{"address": "127.0.0.1:8091", "lameduck": "5s"}]),
        ),
        (
            "a. {\n prometheus :9253\n}\nb. {\n prometheus :9253\n}\nc. {\n prometheus\n}",
            "/prometheus",
            json!(["[::]:9253", "127.0.0.1:9153"]),
        ),
        (
            "a. {\n bind 192.0.2.1\n}\na. {\n bind 192.0.2.2\n}",
            "/servers/1/bind/0/to",
            json!(["192.0.2.2"]),
        ),
        ("a. {\n}\na.:54 {\n}", "/servers/1/port", json!(54)),
        (
            "tls://. {\n tls a b\n}",
            "/servers/0/tls",
            json!({"certificate": "a", "key": "b", "authorities": null, "clientAuth": "nocert"}),
        ),
        (
            "tls://. {\n tls a b c {\n client_auth require_and_verify\n}\n}",
            "/servers/0/tls",
            json!({"certificate": "a", "key": "b", "authorities": "c", "clientAuth": "require_and_verify"}),
        ),
        (
            "https://. {\n tls a b {\n client_auth request\n}\n}",
            "/servers/0/tls/clientAuth",
            json!("request"),
        ),
        (
            "https://. {\n tls a b {\n client_auth require\n}\n}",
            "/servers/0/tls/clientAuth",
            json!("require"),
        ),
        (
            "https://. {\n tls a b {\n client_auth verify_if_given\n}\n}",
            "/servers/0/tls/clientAuth",
            json!("verify_if_given"),
        ),
        (
            "quic://. {\n tls a b {\n client_auth nocert\n}\n}",
            "/servers/0/tls/clientAuth",
            json!("nocert"),
        ),
        ("tls://. {\n tls a b\n}", "/servers/0/port", json!(853)),
        ("quic://. {\n tls a b\n}", "/servers/0/port", json!(853)),
        ("https://. {\n tls a b\n}", "/servers/0/port", json!(443)),
        ("https://.:8443 {\n tls a b\n}", "/servers/0/port", json!(8443)),
        (
            "https://10.0.0.0/24 {\n tls a b\n}",
            "/servers/0/zones",
            json!(["0.0.10.in-addr.arpa."]),
        ),
        // The three and plain DNS, each with what it needs.
        (
            ". tls://. https://. quic://. {\n tls a b\n}",
            "/servers/3/scheme",
            json!("quic"),
        ),
        (
            ". tls://. https://. quic://. {\n tls a b\n}",
            "/servers/0/tls",
            Value::Null,
        ),
        (
            "tls://a {\n tls a b\n}\ntls://b {\n tls a b\n}\nquic://a {\n tls c d\n}",
            "/servers/2/tls/key",
            json!("d"),
        ),
    ]
}

/// What is accepted, and does not do what it says; the warnings name `/etc/coredns/…`.
pub(crate) fn warned_of() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            ". {\n  trace zipkin localhost:9411 {\n    every 100\n  }\n}",
            "Corefile:2:3: trace does nothing: dnsd sends no spans to a tracing service",
        ),
        (
            ". {\n  tls a b\n}",
            "Corefile:1:1: tls at /etc/coredns/Corefile:2 is not used: no key of this block begins with tls://, https:// or quic:// (for upstreams forward has an option tls)",
        ),
        (
            ". {\n  pprof\n}",
            "Corefile:2:3: pprof does nothing: there is no Go runtime to be profiled",
        ),
        (
            ". {\n  prometheus {\n    runtime_metrics\n  }\n}",
            "Corefile:3:5: runtime_metrics does nothing: there is no Go runtime to be measured",
        ),
        (
            ". {\n  forward . 192.0.2.1 {$NOT_SET}a.example\n}",
            "Corefile:2:23: the variable NOT_SET is not set: empty",
        ),
        (
            ". {\n  import *.none\n}",
            "Corefile:2:10: no file matches /etc/coredns/*.none: nothing is imported",
        ),
        (
            ". {\n  log {combined}\n}",
            "Corefile:2:7: one word is a name, not a format: \"log . {combined}\" was meant?",
        ),
        (
            ". {\n  log . \"{name} {nme}\"\n}",
            "Corefile:2:9: {nme} is not filled in: there is no such placeholder",
        ),
        (
            ". {\n  log . {/forward/upstream}\n}",
            "Corefile:2:9: {/forward/upstream} is always -: node-local-dns compiles no metadata in",
        ),
        (
            ". {\n  hosts {\n    tttl 60\n  }\n}",
            "Corefile:3:5: hosts: \"tttl\" is neither an address nor an option: skipped",
        ),
        (
            ". {\n  hosts {\n    192.0.2.1\n  }\n}",
            "Corefile:3:5: hosts: 192.0.2.1 has no names: skipped",
        ),
        (
            ". {\n  forward 10.0.0.0/23 192.0.2.1\n}",
            "Corefile:2:11: 10.0.0.0/23 is 2 zones: the first counts, 0.0.10.in-addr.arpa.",
        ),
        (
            ". {\n  bufsize 600\n  bufsize 700\n}",
            "Corefile:3:3: the first bufsize of the block counts",
        ),
        (
            ". {\n  rewrite name prefix a b\n}",
            "Corefile:2:23: a dot is added, as in CoreDNS: \"a.\" is looked for",
        ),
        (
            ". {\n  reload 20s 15s\n}",
            "Corefile:2:14: more than half of the interval: half of it is taken",
        ),
        (
            "a. {\n reload 10s\n}\nb. {\n reload\n}",
            "Corefile:4:1: this block's reload counts, not that of a block above: there is one file",
        ),
        (
            "a. b.:54 {\n}",
            "Corefile:1:4: another port: it has a cache and limits of its own",
        ),
        (
            "10.0.0/24 {\n}",
            "Corefile:1:1: \"10.0.0/24\" is no network, and taken as a name",
        ),
        (
            ". {\n  template IN A {\n    upstream\n  }\n}",
            "Corefile:3:5: upstream does nothing, as in CoreDNS",
        ),
        (
            ". {\n  cache {\n    success 9984 5 10\n  }\n}",
            "Corefile:3:20: the minimum TTL is above the TTL: the minimum counts",
        ),
    ]
}
