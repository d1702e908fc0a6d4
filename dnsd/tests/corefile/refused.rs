//! Texts that are refused, with what is said.

/// The errors name `/etc/coredns/…`.
pub(crate) fn texts() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "",
            "Corefile:1:1: there is no server block; accepted: at least one, as in \".:53 { forward . /etc/resolv.conf }\"",
        ),
        (
            "# nothing\n",
            "Corefile:1:1: there is no server block; accepted: at least one, as in \".:53 { forward . /etc/resolv.conf }\"",
        ),
        // Syntax.
        (
            ". {\n  cache 30\n",
            "Corefile:2:9: the text ends inside a server block; accepted: a } for each {",
        ),
        (
            ". {\n  cache {\n",
            "Corefile:2:3: the block of cache is not closed; accepted: a } for each {",
        ),
        (
            ". {\n  cache \"30\n}",
            "Corefile:2:9: this quote is not closed; accepted: a closing \" (a \" inside is written \\\")",
        ),
        (
            ". {\n  forward . 192.0.2.1 \\\n    192.0.2.2\n}",
            "Corefile:2:23: a \\ does not continue a line; accepted: all words of an option on one line",
        ),
        (
            ". {\n  cache 30#seconds\n}",
            "Corefile:2:11: a # inside a word; accepted: a space before the comment, or quotes around the word",
        ),
        (
            "{\n}",
            "Corefile:1:1: this server block has no zone; accepted: one or more before the brace, as in \".:53 {\"",
        ),
        (
            ". {\n}\n}",
            "Corefile:3:1: a } that belongs to nothing; accepted: a { before it",
        ),
        (
            ". {\n  {\n}",
            "Corefile:2:3: a { that belongs to nothing; accepted: a directive before the brace",
        ),
        (
            ". {\n  cache\n  {\n  }\n}",
            "Corefile:3:3: this brace stands on a line of its own; accepted: it at the end of the line of its directive",
        ),
        (
            ". {\n  cache {\n    success 10 {\n",
            "Corefile:3:16: a block inside the block of a directive; accepted: options, one a line",
        ),
        (
            "a.example, {\n}",
            "Corefile:1:1: no zone follows this comma; accepted: another zone, or no comma",
        ),
        (
            "(s)\nwhoami",
            "Corefile:1:1: this snippet has no block; accepted: a { behind its name",
        ),
        (
            "(s) {\n",
            "Corefile:1:1: the block of the snippet s is not closed; accepted: a } for each {",
        ),
        (
            "(s) {\n}\n(s) {\n}",
            "Corefile:3:1: the snippet s is there already; accepted: each name once",
        ),
        (
            ". {\n  import\n}",
            "Corefile:2:3: import names nothing; accepted: import FILE|PATTERN|SNIPPET",
        ),
        (
            ". {\n  import s 1\n}",
            "Corefile:2:12: import takes one word (CoreDNS' snippets have no arguments); accepted: import FILE|PATTERN|SNIPPET",
        ),
        (
            ". {\n  import nothing.conf\n}",
            "Corefile:2:10: /etc/coredns/nothing.conf cannot be imported: entity not found; accepted: a file that can be read, or a snippet that stands above",
        ),
        (
            ". {\n  import */*.conf\n}",
            "Corefile:2:10: the pattern */*.conf has several wildcards; accepted: one * and one ? at most, and no []",
        ),
        (
            "import self.conf",
            "self.conf:1:1: imports within imports without an end; accepted: 50 of them within each other",
        ),
        (
            "(s) {\n import s\n}\n. {\n import s\n}",
            "Corefile:2:2: imports within imports without an end; accepted: 50 of them within each other",
        ),
        (
            ". {\n  import broken.conf\n}",
            "broken.conf:4:15: force_tcp: \"x\" is one word too many; accepted: force_tcp",
        ),
        (
            ". {\n  forward . {$ROUND}\n}",
            "Corefile:2:13: the variables in this word name each other without an end; accepted: at most 64 replacements and 65536 octets",
        ),
        // Keys.
        (
            "tls://. {\n}",
            "Corefile:1:1: tls://: this block has no certificate; accepted: tls CERT KEY [CA] in the block",
        ),
        (
            ".:53 quic://. {\n}",
            "Corefile:1:6: quic://: this block has no certificate; accepted: tls CERT KEY [CA] in the block",
        ),
        (
            "tls://a {\n  tls a b\n}\ntls://b {\n  tls a c\n}",
            "Corefile:4:1: tls://: the block at /etc/coredns/Corefile:1:1 has another tls, on the same port 853; accepted: the same tls in all blocks of a port and an address",
        ),
        (
            "tls://. {\n  tls a\n}",
            "Corefile:2:3: tls: a word is missing behind it; accepted: tls CERT KEY [CA] { client_auth nocert|request|require|verify_if_given|require_and_verify }",
        ),
        (
            "tls://. {\n  tls a b c d\n}",
            "Corefile:2:13: tls: \"d\" is one word too many; accepted: tls CERT KEY [CA] { client_auth nocert|request|require|verify_if_given|require_and_verify }",
        ),
        (
            "tls://. {\n  tls a b {\n    client_auth maybe\n  }\n}",
            "Corefile:3:17: client_auth: \"maybe\"; accepted: nocert, request, require, verify_if_given, require_and_verify",
        ),
        (
            "tls://. {\n  tls a b {\n    keylog /tmp/keys\n  }\n}",
            "Corefile:3:5: tls: there is no option \"keylog\"; accepted: client_auth",
        ),
        (
            "grpc://. {\n}",
            "Corefile:1:1: grpc://: dnsd answers over UDP, TCP, TLS, HTTPS and QUIC alone; accepted: dns://, tls://, https:// or quic://, or no scheme",
        ),
        (
            "https3://. {\n}",
            "Corefile:1:1: https3://: dnsd answers over UDP, TCP, TLS, HTTPS and QUIC alone; accepted: dns://, tls://, https:// or quic://, or no scheme",
        ),
        (
            ".: {\n}",
            "Corefile:1:1: nothing follows the colon of \".:\"; accepted: a port, or no colon",
        ),
        (
            ".:0 {\n}",
            "Corefile:1:1: \"0\" is not a port; accepted: 1 to 65535",
        ),
        (
            ".:65536 {\n}",
            "Corefile:1:1: \"65536\" is not a port; accepted: 1 to 65535",
        ),
        (
            ".:53-55 {\n}",
            "Corefile:1:1: \".:53-55\" is not a zone; accepted: a domain name or a network, with a space between two and one port behind a colon",
        ),
        (
            "a.example,b.example {\n}",
            "Corefile:1:1: \"a.example,b.example\" is not a zone; accepted: a domain name or a network, with a space between two and one port behind a colon",
        ),
        (
            "a..example {\n}",
            "Corefile:1:1: \"a..example\" is not a zone: a label has 0 octets; 1 to 63 are accepted; accepted: a domain name or a network",
        ),
        (
            "::/0 {\n}",
            "Corefile:1:1: \"::/0\" is not a reverse zone; accepted: a network with its prefix length that does not begin with a colon or a zero",
        ),
        (
            "a. {\n}\nb. A. {\n}",
            "Corefile:3:4: the zone a. is served on port 53 by the block at /etc/coredns/Corefile:1:1, too; accepted: each zone once for a port and an address",
        ),
        (
            "a. a. {\n}",
            "Corefile:1:4: the zone a. is served on port 53 by the block at /etc/coredns/Corefile:1:1, too; accepted: each zone once for a port and an address",
        ),
        (
            "a. {\n bind 192.0.2.1\n}\na. {\n}",
            "Corefile:4:1: the zone a. is served on port 53 by the block at /etc/coredns/Corefile:1:1, too; accepted: each zone once for a port and an address",
        ),
        (
            "a. {\n bind 192.0.2.1 192.0.2.2\n}\na. {\n bind 192.0.2.2\n}",
            "Corefile:4:1: the zone a. is served on port 53 by the block at /etc/coredns/Corefile:1:1, too; accepted: each zone once for a port and an address",
        ),
        // Directives.
        (
            ". {\n  ready\n}",
            "Corefile:2:3: ready: node-local-dns does not compile it in; accepted: timeouts, reload, bufsize, bind, tls, debug, trace, health, pprof, prometheus, errors, log, dns64, loadbalance, cache, rewrite, template, hosts, loop, forward, whoami",
        ),
        (
            ". {\n  kubernetes cluster.local {\n    pods insecure\n  }\n}",
            "Corefile:2:3: kubernetes: node-local-dns does not compile it in; accepted: timeouts, reload, bufsize, bind, tls, debug, trace, health, pprof, prometheus, errors, log, dns64, loadbalance, cache, rewrite, template, hosts, loop, forward, whoami",
        ),
        (
            ". {\n  chache 30\n}",
            "Corefile:2:3: chache: there is no such directive; accepted: timeouts, reload, bufsize, bind, tls, debug, trace, health, pprof, prometheus, errors, log, dns64, loadbalance, cache, rewrite, template, hosts, loop, forward, whoami",
        ),
        (
            ". {\n  cache\n  errors\n  cache 30\n}",
            "Corefile:4:3: cache is in this block already, at /etc/coredns/Corefile:2:3; accepted: it once in a server block",
        ),
        (
            ". {\n  cache 0\n}",
            "Corefile:2:9: cache TTL: \"0\"; accepted: a whole number from 1 to 4294967295",
        ),
        (
            ". {\n  cache {\n    sucess 10\n  }\n}",
            "Corefile:3:5: cache: there is no option \"sucess\"; accepted: success, denial, prefetch, serve_stale, serve_stale_policy, servfail, disable, keepttl",
        ),
        (
            ". {\n  cache {\n    prefetch 10 1m 20\n  }\n}",
            "Corefile:3:20: prefetch: \"20\"; accepted: 10% to 90%",
        ),
        (
            ". {\n  cache {\n    servfail 10m\n  }\n}",
            "Corefile:3:14: servfail: \"10m\"; accepted: 0s to 5m",
        ),
        (
            ". {\n  cache {\n    serve_stale 1h sometimes\n  }\n}",
            "Corefile:3:20: serve_stale: \"sometimes\"; accepted: immediate or verify",
        ),
        (
            ". {\n  cache {\n    serve_stale_policy prefer_positive\n  }\n}",
            "Corefile:3:5: serve_stale_policy: nothing stale is served; accepted: it beside serve_stale",
        ),
        (
            ". {\n  forward .\n}",
            "Corefile:2:3: forward: a word is missing behind it; accepted: forward FROM TO...",
        ),
        (
            ". {\n  forward . https://192.0.2.1\n}",
            "Corefile:2:13: forward: \"https://192.0.2.1\": upstreams are not asked over https; accepted: dns:// or tls:// or no scheme",
        ),
        (
            ". {\n  forward . tcp://192.0.2.1\n}",
            "Corefile:2:13: forward: \"tcp://192.0.2.1\": a Corefile has no tcp://; accepted: dns:// or tls:// or no scheme, and the option force_tcp",
        ),
        (
            ". {\n  forward . 192.0.2.1.5\n}",
            "Corefile:2:13: forward: \"192.0.2.1.5\" cannot be asked; accepted: [dns://|tls://]ADDRESS[:PORT], a name in place of the address, or the path of a file like /etc/resolv.conf",
        ),
        (
            ". {\n  forward . fe80::1%eth0\n}",
            "Corefile:2:13: forward: \"fe80::1%eth0\": a % names an interface or a certificate; accepted: an address without it, or tls://ADDRESS%SERVERNAME[:PORT]",
        ),
        (
            ". {\n  forward . 192.0.2.1 {\n    doh_method GET\n  }\n}",
            "Corefile:3:5: forward: doh_method: upstreams are not asked over HTTPS; accepted: except, force_tcp, prefer_udp, expire, max_age, max_idle_conns, read_timeout, max_fails, max_connect_attempts, tls, tls_servername, policy, health_check, max_concurrent, next, next_on_nodata, failfast_all_unhealthy_upstreams, failover, source_address, resolver",
        ),
        (
            ". {\n  forward . 192.0.2.1 {\n    max_age 5s\n  }\n}",
            "Corefile:2:3: forward: the greatest age is below the time to expire; accepted: as much or more",
        ),
        (
            ". {\n  forward . 192.0.2.1 {\n    failover NOERROR\n  }\n}",
            "Corefile:3:5: failover: NOERROR is an answer; accepted: other codes",
        ),
        (
            ". {\n  forward . tls://192.0.2.1%a.example {\n    tls_servername b.example\n  }\n}",
            "Corefile:2:3: forward: an upstream names its certificate, and all upstreams are said to have another; accepted: one of the two",
        ),
        (
            ". {\n  template IN AA\n}",
            "Corefile:2:15: type: \"AA\"; accepted: the name of a type, as A, AAAA, HTTPS or ANY",
        ),
        (
            ". {\n  template IN A {\n    expr 1 == 1\n  }\n}",
            "Corefile:3:5: template: expr: expressions of expr-lang are not evaluated; accepted: match, answer, additional, authority, rcode, ederror, fallthrough, upstream",
        ),
        (
            ". {\n  rewrite nme a b\n}",
            "Corefile:2:11: rewrite: \"nme\"; accepted: rewrite [continue|stop] name|type|class|edns0|ttl|cname|rcode ...",
        ),
        (
            ". {\n  rewrite name regex (.*) {1}{2}\n}",
            "Corefile:2:27: rewrite: \"{1}{2}\" uses more groups than the expression has; accepted: as many as it has, {1} for the first",
        ),
        (
            ". {\n  rewrite name regex ( b\n}",
            "Corefile:2:22: regex: \"(\" is not a regular expression (RE2): error: unclosed group; accepted: a regular expression of 10000 octets at most",
        ),
        (
            ". {\n  rewrite edns0 local set 0xffee {forward/upstream}\n}",
            "Corefile:2:34: edns0: \"{forward/upstream}\": node-local-dns compiles no metadata in; accepted: {qname}, {qtype}, {client_ip}, {client_port}, {protocol}, {server_ip}, {server_port}",
        ),
        (
            ". {\n  health 8080\n}",
            "Corefile:2:10: health: \"8080\"; accepted: ADDRESS:PORT, :PORT or localhost:PORT",
        ),
        (
            ". {\n  prometheus {\n    tls /x\n  }\n}",
            "Corefile:3:5: prometheus: metrics are not served over TLS; accepted: no option tls",
        ),
        (
            ". {\n  bind\n}",
            "Corefile:2:3: bind: a word is missing behind it; accepted: bind ADDRESS|INTERFACE... { except ADDRESS|INTERFACE... }",
        ),
        (
            ". {\n  hosts {\n    fallthrough_unsupported\n  }\n}",
            "Corefile:2:3: hosts: fallthrough_unsupported stands without fallthrough; accepted: both, or neither",
        ),
    ]
}

/// Directives that are refused, one thing wrong with each.
pub(crate) const fn in_a_block() -> &'static [&'static str] {
    &[
        "timeouts",
        "timeouts {\n}",
        "timeouts 5s",
        "timeouts {\nread 999ms\n}",
        "timeouts {\nread 25h\n}",
        "timeouts {\nmaxtcpqueries 0\n}",
        "reload 1s",
        "reload 10s 999ms",
        "reload 10s 1s 1s",
        "bufsize 511",
        "bufsize 4097",
        "bufsize 512 512",
        "debug on",
        "loop .",
        "whoami me",
        "bind /",
        "bind 192.0.2.1 {\nonly eth0\n}",
        "bind 192.0.2.1 {\nexcept\n}",
        "health :8080 :8081",
        "health {\nlameduck\n}",
        "health {\nlameduck soon\n}",
        "errors /var/log",
        "errors {\nconsolidate 5m\n}",
        "errors {\nconsolidate 5m a show_first warning\n}",
        "errors {\nconsolidate 5m a info warning\n}",
        "errors {\nconsolidate 5m a loud\n}",
        "errors\nerrors",
        "hosts\nhosts",
        "loop\nloop",
        "prometheus\nprometheus",
        "pprof\npprof",
        "log . {\nclass some\n}",
        "log . {\nclass\n}",
        "dns64 192.0.2.0/24",
        "dns64 2001:db8::/72",
        "dns64 2001:db8::/96 {\nallow_ipv4\n}",
        "loadbalance random",
        "loadbalance weighted",
        "loadbalance {\nreload 5s\n}",
        "loadbalance {\nprefer a\n}",
        "cache -1",
        "cache {\nsuccess\n}",
        "cache {\nsuccess many\n}",
        "cache {\ndenial 10 0\n}",
        "cache {\ndenial 10 1 -1\n}",
        "cache {\nprefetch -1\n}",
        "cache {\nprefetch 1 1m 9%\n}",
        "cache {\nserve_stale -1h\n}",
        "cache {\nserve_stale 1h immediate 500ms\n}",
        "cache {\nserve_stale 1h immediate 1s 6m\n}",
        "cache {\nserve_stale 1h immediate 1s 1s 1s\n}",
        "cache {\nserve_stale\nserve_stale_policy prefer_positive\nserve_stale_policy prefer_positive\n}",
        "cache {\nserve_stale\nserve_stale_policy prefer_negative\n}",
        "cache {\ndisable all\n}",
        "cache {\nkeepttl 1\n}",
        "hosts {\nttl 0\n}",
        "hosts {\nttl 65536\n}",
        "hosts {\nreload -1s\n}",
        "hosts {\nfallthrough\n192.0.2.1 a.example\n}",
        "template IN",
        "template XX A",
        "template IN A {\nmatch (\n}",
        "template IN A {\nanswer\n}",
        "template IN A {\nanswer \"{{ .Name 60 IN A 192.0.2.1\"\n}",
        "template IN A {\nanswer \"\"\n}",
        "template IN A {\nanswer \"{{/* nothing */}}\"\n}",
        "template IN A {\nrcode NO\n}",
        "template IN A {\nederror 65536\n}",
        "template IN A {\nvar a 1\n}",
        "rewrite",
        "rewrite name a",
        "rewrite name exact a b auto",
        "rewrite name exact a b answer name c d answer auto",
        "rewrite name exact a b answer name c",
        "rewrite name exact a b answer both c d",
        "rewrite name like a b",
        "rewrite answer name a b",
        "rewrite type A",
        "rewrite type A AAAAA",
        "rewrite class IN IN IN",
        "rewrite edns0 local set 0x10000 0x00",
        "rewrite edns0 local set 1 0x0",
        "rewrite edns0 local set 1 {client}",
        "rewrite edns0 local change 1 0x00",
        "rewrite edns0 nsid set 1",
        "rewrite edns0 subnet set 33 56",
        "rewrite edns0 cookie set 1 2",
        "rewrite ttl a.example",
        "rewrite ttl a.example -",
        "rewrite ttl a.example 5-4",
        "rewrite ttl a.example +5",
        "rewrite cname a",
        "rewrite cname like a b",
        "rewrite rcode a NXDOMAIN",
        "rewrite rcode a NXDOMAIN 24",
        "forward . 192.0.2.1 {\nexcept\n}",
        "forward . 192.0.2.1 {\nexpire -1s\n}",
        "forward . 192.0.2.1 {\nmax_fails -1\n}",
        "forward . 192.0.2.1 {\nmax_fails 4294967296\n}",
        "forward . 192.0.2.1 {\nmax_concurrent -1\n}",
        "forward . 192.0.2.1 {\nmax_idle_conns -1\n}",
        "forward . 192.0.2.1 {\nread_timeout 0\n}",
        "forward . 192.0.2.1 {\npolicy best\n}",
        "forward . 192.0.2.1 {\nhealth_check\n}",
        "forward . 192.0.2.1 {\nhealth_check 1s rec\n}",
        "forward . 192.0.2.1 {\nhealth_check 1s domain\n}",
        "forward . 192.0.2.1 {\nnext NO\n}",
        "forward . 192.0.2.1 {\nsource_address a\n}",
        "forward . 192.0.2.1 {\nresolver a\n}",
        "forward . 192.0.2.1 {\ntls a b c d\n}",
        "forward . 192.0.2.1:0",
        "forward . 192.0.2.1:65536",
        "forward . tls:///etc/resolv.conf",
        "forward . tls://192.0.2.1%",
        "forward . ftp://192.0.2.1",
        "forward . 1 192.0.2.1",
        "forward . 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7 192.0.2.8 192.0.2.9 192.0.2.10 192.0.2.11 192.0.2.12 192.0.2.13 192.0.2.14 192.0.2.15 192.0.2.16",
    ]
}
