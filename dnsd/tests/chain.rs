//! Each plugin of a chain on real sockets: two configurations with different answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsCode;
use hickory_proto::rr::{Record, RecordType};
use support::{address, alias, extended_error, query, response, with_code};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use whole::{Dnsd, PATIENCE, Upstream, in_short, with_blocks};

/// Tells 192.0.2.1 for each name when asked for A, 10 addresses for `many.test`, an alias for `www.test`, and nothing for
/// AAAA.
async fn upstream() -> Upstream {
    Upstream::start(|query, _| {
        let asked = Message::from_vec(query).unwrap().queries[0].clone();
        let name = asked.name.to_lowercase().to_ascii();
        let owner = asked.name.to_ascii();
        let records: Vec<Record> = match (asked.query_type, name.as_str()) {
            (RecordType::A, "many.test.") => (0..10)
                .map(|last| address(&owner, 60, &format!("192.0.2.{last}")))
                .collect(),
            (RecordType::A, "www.test.") => vec![
                alias(&owner, 60, "origin.test"),
                address("origin.test", 60, "192.0.2.7"),
            ],
            (RecordType::A, "none.test.") => {
                return vec![
                    with_code(response(query, Vec::new()), ResponseCode::NXDomain)
                        .to_vec()
                        .unwrap(),
                ];
            }
            (RecordType::A, _) => vec![address(&owner, 60, "192.0.2.1")],
            _other => Vec::new(),
        };
        vec![response(query, records).to_vec().unwrap()]
    })
    .await
}

#[tokio::test]
async fn each_option_makes_another_answer() {
    let up = upstream().await;
    let hosts = std::env::temp_dir().join(format!("egret-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "192.0.2.50 file.test\n").unwrap();
    let hosts_file = hosts.display().to_string();
    let v4 = RecordType::A;
    let v6 = RecordType::AAAA;
    for (place, (option, name, kind, without, with)) in [
        (
            "rewrite name exact new.test old.test",
            "new.test",
            v4,
            "NoError 192.0.2.1",
            "NoError 192.0.2.1",
        ),
        (
            "rewrite name exact new.test many.test",
            "new.test",
            v4,
            "NoError 192.0.2.1",
            "10",
        ),
        (
            "rewrite name suffix .corp.test .test answer auto",
            "www.corp.test",
            v4,
            "NoError 192.0.2.1",
            "NoError origin.corp.test. 192.0.2.7",
        ),
        (
            "rewrite type AAAA A",
            "a.test",
            v6,
            "NoError",
            "NoError 192.0.2.1",
        ),
        (
            "rewrite rcode exact none.test NXDOMAIN NOERROR",
            "none.test",
            v4,
            "NXDomain",
            "NoError",
        ),
        (
            "rewrite cname exact origin.test. a.test.",
            "www.test",
            v4,
            "NoError origin.test. 192.0.2.7",
            "NoError a.test. 192.0.2.1",
        ),
        (
            "template IN A tpl.test {\n answer \"{{ .Name }} 60 IN A 192.0.2.9\"\n }",
            "x.tpl.test",
            v4,
            "NoError 192.0.2.1",
            "NoError 192.0.2.9",
        ),
        (
            "template IN A tpl.test {\n rcode NXDOMAIN\n }",
            "x.tpl.test",
            v4,
            "NoError 192.0.2.1",
            "NXDomain",
        ),
        (
            "hosts {\n 192.0.2.40 host.test\n fallthrough\n }",
            "host.test",
            v4,
            "NoError 192.0.2.1",
            "NoError 192.0.2.40",
        ),
        (
            "hosts {\n 192.0.2.40 host.test\n fallthrough\n }",
            "other.test",
            v4,
            "NoError 192.0.2.1",
            "NoError 192.0.2.1",
        ),
        (
            "hosts {\n 192.0.2.40 host.test\n }",
            "other.test",
            v4,
            "NoError 192.0.2.1",
            "ServFail",
        ),
        (
            &*format!("hosts {hosts_file} {{\n fallthrough\n }}"),
            "file.test",
            v4,
            "NoError 192.0.2.1",
            "NoError 192.0.2.50",
        ),
        (
            "dns64 {\n allow_ipv4\n }",
            "a.test",
            v6,
            "NoError",
            "NoError 64:ff9b::c000:201",
        ),
        (
            "dns64 {\n prefix 2001:db8::/96\n allow_ipv4\n }",
            "a.test",
            v6,
            "NoError",
            "NoError 2001:db8::c000:201",
        ),
        ("dns64", "a.test", v6, "NoError", "NoError"),
    ]
    .into_iter()
    .enumerate()
    {
        for (option, expected) in [("", without), (option, with)] {
            let corefile = format!(
                ". {{\n bind 127.0.0.1\n {option}\n forward . {}\n}}\n",
                up.address
            );
            let dnsd = Dnsd::with(&format!("chain-{place}-{}", option.len()), &corefile);
            let answer = dnsd
                .ask_at(dnsd.address, &query(name, kind, Some(1232)))
                .await
                .unwrap();
            let said = match expected {
                "10" => answer.answers.len().to_string(),
                _other => in_short(&answer),
            };
            assert_eq!(said, expected, "{option} {name}");
        }
    }
    drop(std::fs::remove_file(&hosts));
}

#[tokio::test]
async fn whoami_answers_last_and_each_client_differently() {
    let dnsd = Dnsd::with("whoami", ". {\n bind 127.0.0.1\n cache 30\n whoami\n}\n");
    let mut ports = Vec::new();
    for _ in 0..2 {
        let answer = dnsd.ask("example.test").await.unwrap();
        assert_eq!(answer.additionals.len(), 2, "{answer:?}");
        ports.push(answer.additionals[1].data.to_string());
    }
    assert_ne!(ports[0], ports[1]);
}

/// A question from this address: it is sent before anybody else's turn.
fn asked_from(source: Ipv4Addr, dnsd: &Dnsd, name: &str) -> UdpSocket {
    let client = std::net::UdpSocket::bind((source, 0)).unwrap();
    client.connect(dnsd.address).unwrap();
    client.set_nonblocking(true).unwrap();
    client.send(&query(name, RecordType::A, Some(1232))).unwrap();
    UdpSocket::from_std(client).unwrap()
}

async fn told_to(client: &UdpSocket) -> String {
    let mut buffer = vec![0; 65_535];
    let length = timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap();
    in_short(&Message::from_vec(&buffer[..length.unwrap()]).unwrap())
}

/// By a template that names who asks, and by an upstream that is told who asks and answers with that.
#[tokio::test]
async fn an_answer_that_depends_on_the_client_is_not_shared() {
    let up = Upstream::start(|query, _| {
        let message = Message::from_vec(query).unwrap();
        let option = message.edns.as_ref().unwrap().option(EdnsCode::Unknown(65_001));
        let octets: [u8; 4] = Vec::<u8>::try_from(option.unwrap()).unwrap().try_into().unwrap();
        let name = message.queries[0].name.to_ascii();
        let told = address(&name, 60, &Ipv4Addr::from(octets).to_string());
        vec![response(query, vec![told]).to_vec().unwrap()]
    })
    .await;
    let forward = format!(
        "rewrite edns0 local set 65001 {{client_ip}}\n forward . {} {{\n max_fails 0\n }}",
        up.address
    );
    let template = "template IN A test {\n answer \"{{ .Name }} 60 IN A {{ .Remote }}\"\n }";
    let sources = [1, 2].map(|last| Ipv4Addr::new(127, 0, 0, last));
    for (number, answers) in [template, &forward].into_iter().enumerate() {
        let corefile = format!(". {{\n bind 127.0.0.1\n cache\n {answers}\n}}\n");
        let dnsd = Dnsd::with(&format!("alone-{number}"), &corefile);
        for source in sources {
            let client = asked_from(source, &dnsd, "one-by-one.test");
            assert_eq!(told_to(&client).await, format!("NoError {source}"), "{answers}");
        }
        let at_once = sources.map(|source| asked_from(source, &dnsd, "at-once.test"));
        for (client, source) in at_once.iter().zip(sources) {
            assert_eq!(told_to(client).await, format!("NoError {source}"), "{answers}");
        }
    }
}

#[tokio::test]
async fn loadbalance_reorders_cached_answers() {
    let up = upstream().await;
    for (option, is_shuffled) in [("", false), ("loadbalance", true)] {
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n {option}\n cache 30\n forward . {}\n}}\n",
            up.address
        );
        let dnsd = Dnsd::with(&format!("balance-{is_shuffled}"), &corefile);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..10 {
            orders.insert(dnsd.says("many.test").await);
        }
        assert_eq!(orders.len() > 1, is_shuffled, "{option}");
    }
}

#[tokio::test]
async fn a_hosts_file_is_read_again_at_the_interval_of_the_block() {
    let file = std::env::temp_dir().join(format!("egret-hosts-again-{}", std::process::id()));
    std::fs::write(&file, "192.0.2.50 file.test\n").unwrap();
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n hosts {} {{\n reload 20ms\n }}\n}}\n",
        file.display()
    );
    let dnsd = Dnsd::with("hosts-again", &corefile);
    assert_eq!(dnsd.says("file.test").await, "NoError 192.0.2.50");
    std::fs::write(&file, "192.0.2.51 file.test other.test\n").unwrap();
    let seen = async {
        while dnsd.says("file.test").await != "NoError 192.0.2.51" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, seen).await.expect("the file is read again");
    drop(std::fs::remove_file(&file));
}

/// An upstream that answers while it is let, with TTL 1.
async fn switchable() -> (Upstream, Arc<AtomicBool>) {
    let answers = Arc::new(AtomicBool::new(true));
    let lets = Arc::clone(&answers);
    let upstream = Upstream::start(move |query, _| {
        if !lets.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let name = Message::from_vec(query).unwrap().queries[0].name.to_ascii();
        vec![
            response(query, vec![address(&name, 1, "192.0.2.1")])
                .to_vec()
                .unwrap(),
        ]
    });
    (upstream.await, answers)
}

#[tokio::test]
async fn serve_stale_answers_while_the_upstream_is_silent() {
    for (option, said) in [
        ("", "ServFail"),
        ("serve_stale", "NoError 192.0.2.1"),
        ("serve_stale 1h verify", "NoError 192.0.2.1"),
    ] {
        let (up, answers) = switchable().await;
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n cache {{\n success 100 1 1\n {option}\n }}\n forward . {} {{\n read_timeout 100ms\n max_connect_attempts 1\n }}\n}}\n",
            up.address
        );
        let dnsd = Dnsd::with(&format!("stale-{}", option.len()), &corefile);
        assert_eq!(dnsd.says("a.test").await, "NoError 192.0.2.1");
        answers.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(dnsd.says("a.test").await, said, "{option}");
    }
}

/// Whoever asks for all that has ended would have all of it asked for at once.
#[tokio::test]
async fn refreshes_of_stale_answers_count_as_waiting_queries() {
    let (answers, in_vain) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let (lets, asked) = (
        Arc::clone(&answers),
        Arc::<Mutex<BTreeSet<String>>>::clone(&in_vain),
    );
    let up = Upstream::start(move |query, _| {
        let name = Message::from_vec(query).unwrap().queries[0].name.to_ascii();
        if !lets.load(Ordering::Relaxed) {
            asked.lock().unwrap().insert(name.to_ascii_lowercase());
            return Vec::new();
        }
        let answer = response(query, vec![address(&name, 1, "192.0.2.1")]);
        vec![answer.to_vec().unwrap()]
    })
    .await;
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n cache {{\n success 100 1 1\n serve_stale\n }}\n forward . {} {{\n read_timeout 4s\n max_fails 0\n }}\n}}\n",
        up.address
    );
    let config = with_blocks(&corefile, "waitingPerClient: 3").unwrap();
    let dnsd = Dnsd::run(config, "/nonexistent".into());
    let names: Vec<String> = (0..20).map(|number| format!("n{number}.test")).collect();
    for name in &names {
        assert_eq!(dnsd.says(name).await, "NoError 192.0.2.1");
    }
    answers.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for name in &names {
        assert_eq!(
            dnsd.says(name).await,
            "NoError 192.0.2.1",
            "it is given all the same"
        );
    }
    assert_eq!(dnsd.service.resolver.waiting(), 3);
    let asked = || in_vain.lock().unwrap().len();
    let three = async {
        while asked() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, three).await.expect("three are asked for");
    assert_eq!(asked(), 3);
}

#[tokio::test]
async fn a_failure_is_cached_for_the_servfail_duration() {
    for (option, asked) in [("servfail 0s", 2), ("servfail 5s", 1)] {
        let (up, answers) = switchable().await;
        answers.store(false, Ordering::Relaxed);
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n cache {{\n {option}\n }}\n forward . {} {{\n read_timeout 100ms\n max_connect_attempts 1\n }}\n}}\n",
            up.address
        );
        let dnsd = Dnsd::with(&option.replace(' ', "-"), &corefile);
        for _ in 0..2 {
            assert_eq!(dnsd.says("a.test").await, "ServFail");
        }
        assert_eq!(up.asked(), asked, "{option}");
    }
}

#[tokio::test]
async fn queries_are_logged_in_the_format_of_the_block() {
    let up = upstream().await;
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n log other.test \"{{name}} {{rcode}} {{>rflags}}\"\n log none.test {{\n class denial error\n }}\n forward . {}\n}}\n",
        up.address
    );
    let dnsd = Dnsd::with("log", &corefile);
    for name in ["silent.test", "a.other.test", "none.test"] {
        dnsd.says(name).await;
    }
    let line = dnsd.lines.has("none.test.").await;
    assert!(line.starts_with("[INFO] 127.0.0.1:"), "{line}");
    assert!(
        line.contains("\"A IN none.test. udp 38 false 1232\" NXDOMAIN qr,rd,ra 38 0."),
        "{line}"
    );
    let text = dnsd.lines.text();
    assert!(text.contains("[INFO] a.other.test. NOERROR qr,rd,ra\n"), "{text}");
    assert!(!text.contains("silent"), "{text}");
}

#[tokio::test]
async fn errors_are_consolidated() {
    let (up, answers) = switchable().await;
    answers.store(false, Ordering::Relaxed);
    let corefile = |errors: &str| {
        format!(
            ". {{\n bind 127.0.0.1\n {errors}\n forward . {} {{\n read_timeout 50ms\n max_connect_attempts 1\n }}\n}}\n",
            up.address
        )
    };
    let plain = Dnsd::with("errors", &corefile("errors"));
    plain.says("a.test").await;
    let line = plain.lines.has("plugin/errors").await;
    assert_eq!(
        line,
        "[ERROR] plugin/errors: 2 a.test. A: no upstream answered: i/o timeout"
    );
    let told = corefile("errors {\n consolidate 200ms \".* i/o timeout$\" warning\n }");
    let together = Dnsd::with("errors-together", &told);
    for name in ["a.test", "b.test", "c.test"] {
        together.says(name).await;
    }
    let line = together.lines.has("errors like").await;
    assert!(line.starts_with("[WARNING] plugin/errors: "), "{line}");
    assert!(
        !together.lines.text().contains("a.test"),
        "{}",
        together.lines.text()
    );
    let silent = Dnsd::with("errors-none", &corefile("debug"));
    silent.says("a.test").await;
    assert!(silent.lines.has("i/o timeout").await.starts_with("[DEBUG]"));
}

#[tokio::test]
async fn metrics_of_coredns_have_its_names() {
    let up = upstream().await;
    let block = |zone: &str, prometheus: &str| {
        format!(
            "{zone} {{\n bind 127.0.0.1\n {prometheus}\n cache 30\n forward . {}\n}}\n",
            up.address
        )
    };
    let dnsd = Dnsd::with(
        "counted",
        &format!(
            "{}{}",
            block("test", "prometheus 127.0.0.1:9253"),
            block("quiet.test", "")
        ),
    );
    for name in [
        "a.test",
        "a.test",
        "none.test",
        "a.quiet.test",
        "elsewhere.example",
    ] {
        dnsd.says(name).await;
    }
    let mut page = egret_shared::rt::telemetry::MetricsPage::default();
    dnsd.service.resolver.serving().count_caches();
    dnsd.telemetry.counts.write(&mut page);
    let page = page.text();
    let server = "server=\"dns://127.0.0.1:0\"";
    let zone = format!("{server},zone=\"test.\",view=\"\"");
    for (line, value) in [
        (
            format!("coredns_dns_requests_total{{{zone},proto=\"udp\",family=\"1\",type=\"A\"}}"),
            "3",
        ),
        (
            format!("coredns_dns_responses_total{{{zone},rcode=\"NOERROR\",plugin=\"forward\"}}"),
            "1",
        ),
        (
            format!("coredns_dns_responses_total{{{zone},rcode=\"NOERROR\",plugin=\"cache\"}}"),
            "1",
        ),
        (
            format!("coredns_dns_responses_total{{{zone},rcode=\"NXDOMAIN\",plugin=\"forward\"}}"),
            "1",
        ),
        (
            format!("coredns_dns_request_duration_seconds_count{{{zone}}}"),
            "3",
        ),
        (
            format!("coredns_dns_request_duration_seconds_bucket{{{zone},le=\"8.192\"}}"),
            "3",
        ),
        (
            format!("coredns_dns_request_size_bytes_count{{{zone},proto=\"udp\"}}"),
            "3",
        ),
        (
            format!("coredns_dns_response_size_bytes_count{{{zone},proto=\"udp\"}}"),
            "3",
        ),
        (
            format!("coredns_cache_hits_total{{{server},type=\"success\",zones=\"test.\",view=\"\"}}"),
            "1",
        ),
        (
            format!("coredns_cache_misses_total{{{server},zones=\"test.\",view=\"\"}}"),
            "2",
        ),
        (
            format!("coredns_cache_requests_total{{{server},zones=\"test.\",view=\"\"}}"),
            "3",
        ),
        (
            format!("coredns_cache_entries{{{server},type=\"success\",zones=\"test.\",view=\"\"}}"),
            "1",
        ),
        (
            format!(
                "coredns_dns_responses_total{{{server},zone=\"dropped\",view=\"\",rcode=\"REFUSED\",plugin=\"\"}}"
            ),
            "1",
        ),
    ] {
        let found = page
            .lines()
            .find_map(|it| it.strip_prefix(&*line)?.strip_prefix(' '));
        assert_eq!(found, Some(value), "{line} in {page}");
    }
    assert!(!page.contains("quiet"), "{page}");
}

/// RFC 8914 §4.1.
const OTHER_ERROR: u16 = 0;

#[tokio::test]
async fn a_block_with_a_loop_fails_and_other_blocks_answer() {
    let up = upstream().await;
    // Its own address is known only when it runs.
    let mut dnsd = Dnsd::with("loop", ". {\n bind 127.0.0.1\n whoami\n}\n");
    let own = dnsd.address;
    let looping = |option: &str| {
        format!(
            ". {{\n bind 127.0.0.1\n {option}\n forward . {own} {{\n read_timeout 300ms\n }}\n}}\n\
             fine.test {{\n bind 127.0.0.1\n forward . {}\n}}\n",
            up.address
        )
    };
    dnsd.put_in_force(&looping("loop")).unwrap();
    dnsd.service.resolver.serving().look_for_loops(|_| own);
    let found = async {
        loop {
            let answer = dnsd.ask("a.example.test").await;
            // Of an upstream that does not answer it would be another.
            if answer.as_ref().and_then(extended_error) == Some(OTHER_ERROR) {
                return;
            }
        }
    };
    timeout(Duration::from_secs(20), found)
        .await
        .expect("the loop is found");
    assert_eq!(dnsd.says("a.fine.test").await, "NoError 192.0.2.1");
}

#[tokio::test]
async fn an_upstream_that_answers_only_later_is_no_loop() {
    let (up, answers) = switchable().await;
    answers.store(false, Ordering::Relaxed);
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n errors\n loop\n forward . {} {{\n read_timeout 100ms\n }}\n}}\n",
        up.address
    );
    let dnsd = Dnsd::with("late", &corefile);
    let own = dnsd.address;
    dnsd.service.resolver.serving().look_for_loops(|_| own);
    while up.asked() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    answers.store(true, Ordering::Relaxed);
    assert_eq!(dnsd.says("a.test").await, "NoError 192.0.2.1");
    assert!(!dnsd.lines.text().contains("HINFO"), "{}", dnsd.lines.text());
}

/// A pod that asks at an address of its own.
struct Pod(UdpSocket);

impl Pod {
    async fn at(source: [u8; 4], dnsd: &Dnsd) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::from(source), 0)).await.unwrap();
        socket.connect(dnsd.address).await.unwrap();
        Self(socket)
    }

    async fn asks(&self, names: impl IntoIterator<Item = &str>) {
        for name in names {
            let question = query(name, RecordType::A, Some(1232));
            self.0.send(&question).await.unwrap();
        }
    }

    /// What it is told next, and of which name.
    async fn hears(&self) -> (String, String) {
        let mut buffer = [0; 2048];
        let length = timeout(PATIENCE, self.0.recv(&mut buffer)).await;
        let reply = Message::from_vec(&buffer[..length.expect("a reply").unwrap()]).unwrap();
        (reply.queries[0].name.to_ascii(), in_short(&reply))
    }
}

/// A block with 8 places, whose upstream says nothing of names that begin with `slow`, nor of `both.test` before it is told to.
async fn eight_places() -> (Dnsd, Upstream, Arc<AtomicBool>) {
    let may_tell = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&may_tell);
    let up = Upstream::start(move |query, _| {
        let name = Message::from_vec(query).unwrap().queries[0].name.to_ascii();
        let name = name.to_ascii_lowercase();
        let is_told = !name.starts_with("slow") && (name != "both.test." || told.load(Ordering::Relaxed));
        let answer = || response(query, vec![address(&name, 60, "192.0.2.1")]);
        is_told.then(|| answer().to_vec().unwrap()).into_iter().collect()
    })
    .await;
    let corefile = format!(
        ". {{\n bind 127.0.0.1\n cache\n forward . {} {{\n read_timeout 60s\n max_fails 0\n max_concurrent 8\n }}\n}}\n",
        up.address
    );
    let dnsd = Dnsd::run(
        with_blocks(&corefile, "totalTimeout: 60s\nstallDeadline: 1ms").unwrap(),
        "/nonexistent".into(),
    );
    (dnsd, up, may_tell)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect(what);
}

/// Whoever asks for enough names of a slow upstream would have everybody else REFUSED.
#[tokio::test]
async fn a_client_with_all_permits_of_max_concurrent_gives_some_up() {
    let (dnsd, _up, _) = eight_places().await;
    let [flood, pod] = [
        Pod::at([127, 0, 0, 2], &dnsd).await,
        Pod::at([127, 0, 0, 3], &dnsd).await,
    ];
    let slow: Vec<String> = (0..20).map(|number| format!("slow{number}.test.")).collect();
    flood.asks(slow.iter().map(String::as_str)).await;
    let mut refused = BTreeSet::new();
    for _ in 0..12 {
        let (name, told) = flood.hears().await;
        assert_eq!(told, "Refused", "{name}");
        refused.insert(name);
    }
    assert_eq!(
        (refused.len(), dnsd.service.resolver.waiting()),
        (12, 8),
        "alone it has all of them"
    );
    for number in 0..10 {
        // It takes again what is free.
        flood.asks([format!("slow-too{number}.test.").as_str()]).await;
        let name = format!("quick{number}.test.");
        pod.asks([name.as_str()]).await;
        assert_eq!(pod.hears().await, (name, "NoError 192.0.2.1".to_owned()));
    }
    // The first came while it had all; then one was taken each time.
    for _ in 0..11 {
        let (name, told) = flood.hears().await;
        assert_eq!(told, "Refused", "{name}");
        assert!(refused.insert(name));
    }
    assert_eq!(dnsd.service.resolver.waiting(), 7);
}

/// Else who floods could take along whoever asks for the same.
#[tokio::test]
async fn a_waiter_sends_the_query_itself_when_the_leader_loses_its_permit() {
    let (dnsd, up, may_tell) = eight_places().await;
    let [flood, pod, other] =
        [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]].map(|source| Pod::at(source, &dnsd));
    let (flood, pod, other) = tokio::join!(flood, pod, other);
    let waiting = |count| {
        let dnsd = &dnsd;
        move || dnsd.service.resolver.waiting() == count
    };
    flood.asks(["both.test."]).await;
    until("it is asked", || up.asked() == 1).await;
    pod.asks(["both.test."]).await;
    until("both wait", waiting(2)).await;
    let slow: Vec<String> = (0..7).map(|number| format!("slow{number}.test.")).collect();
    flood.asks(slow.iter().map(String::as_str)).await;
    until("all places are taken", || up.asked() == 8).await;
    may_tell.store(true, Ordering::Relaxed);
    other.asks(["quick.test."]).await;
    let told = |name: &str, what: &str| (name.to_owned(), what.to_owned());
    assert_eq!(other.hears().await, told("quick.test.", "NoError 192.0.2.1"));
    assert_eq!(flood.hears().await, told("both.test.", "Refused"));
    assert_eq!(pod.hears().await, told("both.test.", "NoError 192.0.2.1"));
}
