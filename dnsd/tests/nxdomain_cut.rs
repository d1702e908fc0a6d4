//! NXDOMAIN cuts with an upstream that denies and counts, and with a cluster as CoreDNS' plugin `kubernetes` answers
//! for it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{RData, Record, RecordType};
use support::{address, alias, authority, extended_error, name, query, response, with_code};
use tokio::time::timeout;
use whole::{Dnsd, PATIENCE, Upstream, in_short, with_blocks};

/// What an upstream was asked, by name and type.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(String, RecordType)>>>);

impl Log {
    fn add(&self, query: &[u8]) -> (String, RecordType) {
        let asked = Message::from_vec(query).unwrap();
        let name = asked.queries[0].name.to_lowercase().to_ascii();
        let asked = (
            name.trim_end_matches('.').to_owned(),
            asked.queries[0].query_type(),
        );
        self.0.lock().unwrap().push(asked.clone());
        asked
    }

    fn count(&self, name: &str) -> usize {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(asked, _)| asked == name).count()
    }

    async fn has(&self, name: &str) {
        let asked = async {
            while self.count(name) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let asked = timeout(PATIENCE, asked).await;
        asked.unwrap_or_else(|_elapsed| panic!("{name} was not asked for, but {:?}", self.0.lock().unwrap()));
    }
}

/// What a cluster answers: bases and namespaces without records, a headless service with its pods and ports, one that stands
/// for a name elsewhere, one of another cluster; and what somebody else put where the cluster knows of nothing.
fn in_cluster(query: &[u8], asked: &str, kind: RecordType) -> Message {
    let exists = |records: Vec<Record>| {
        let mut message = response(query, records);
        if message.answers.is_empty() {
            message.add_authority(authority(30, 30));
        }
        message
    };
    let only = |wanted: RecordType, record: Record| if kind == wanted { vec![record] } else { Vec::new() };
    match asked {
        "cluster.test"
        | "svc.cluster.test"
        | "pod.cluster.test"
        | "shop.svc.cluster.test"
        | "back.svc.cluster.test"
        | "svc.clusterset.test"
        | "shop.svc.clusterset.test" => exists(Vec::new()),
        "web.shop.svc.cluster.test"
        | "pod-0.web.shop.svc.cluster.test"
        | "web.shop.svc.clusterset.test"
        | "pod-0.east.web.shop.svc.clusterset.test"
        | "deep.odd.shop.svc.cluster.test"
        | "ns.dns.cluster.test"
        | "10-0-0-9.shop.pod.cluster.test" => exists(only(RecordType::A, address(asked, 30, "10.0.0.9"))),
        "_http._tcp.web.shop.svc.cluster.test" => {
            let srv = SRV::new(0, 0, 80, name("pod-0.web.shop.svc.cluster.test"));
            exists(only(
                RecordType::SRV,
                Record::from_rdata(name(asked), 30, RData::SRV(srv)),
            ))
        }
        "db.shop.svc.cluster.test" => exists(vec![
            alias(asked, 30, "db.example.test"),
            address("db.example.test", 30, "203.0.113.7"),
        ]),
        _absent => {
            let mut message = with_code(response(query, Vec::new()), ResponseCode::NXDomain);
            message.add_authority(authority(30, 20));
            message
        }
    }
}

async fn cluster(log: &Log) -> Upstream {
    let log = log.clone();
    Upstream::start(move |query, _| {
        let (asked, kind) = log.add(query);
        vec![in_cluster(query, &asked, kind).to_vec().unwrap()]
    })
    .await
}

const OPTIONS: &str = "clusterDomains: [cluster.test, clusterset.test]\n";

fn dnsd(test: &str, block: &str, upstream: &Upstream, options: &str) -> Dnsd {
    let corefile = format!(
        "{block} {{\n bind 127.0.0.1\n cache 30\n forward . {}\n}}\n",
        upstream.address
    );
    started(test, &corefile, options)
}

fn started(test: &str, corefile: &str, options: &str) -> Dnsd {
    let socket = std::env::temp_dir().join(format!("egret-below-{test}-{}.sock", std::process::id()));
    Dnsd::run(with_blocks(corefile, options).unwrap(), socket)
}

/// A question that has no turn for long is asked once more; one for each of the names below would be many.
fn is_asked_once(log: &Log, name: &str) -> bool {
    (1..=4).contains(&log.count(name))
}

/// Whether names below `place` come to be denied without being asked for.
async fn is_cut(dnsd: &Dnsd, log: &Log, place: &str) -> bool {
    are_denied(dnsd, log, place, 500).await
}

/// Whether they go on being asked for.
async fn stays_open(dnsd: &Dnsd, log: &Log, place: &str) -> bool {
    !are_denied(dnsd, log, place, 50).await
}

async fn are_denied(dnsd: &Dnsd, log: &Log, place: &str, names: usize) -> bool {
    for number in 0..names {
        let name = format!("n{number}.probe.{place}");
        assert_eq!(dnsd.says(&name).await, "NXDomain");
        if log.count(&name) == 0 {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn below_a_denied_label_no_query_of_any_type_goes_upstream() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("bases", "cluster.test", &upstream, OPTIONS);
    for place in [
        "com.cluster.test",
        "com.svc.cluster.test",
        "com.shop.svc.cluster.test",
        "com.back.svc.cluster.test",
    ] {
        assert!(is_cut(&dnsd, &log, place).await, "{place}");
        let before = upstream.asked();
        for kind in [
            RecordType::A,
            RecordType::AAAA,
            RecordType::TXT,
            RecordType::HTTPS,
        ] {
            let name = format!("api.example.{place}");
            let answer = dnsd
                .ask_at(dnsd.address, &query(&name, kind, None))
                .await
                .unwrap();
            assert_eq!(in_short(&answer), "NXDomain", "{name} {kind}");
        }
        assert_eq!(upstream.asked(), before, "{place}");
        assert!(is_asked_once(&log, place), "{place}");
    }
}

#[tokio::test]
async fn a_synthesized_denial_has_the_soa_of_the_cut_and_code_29() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("soa", "cluster.test", &upstream, OPTIONS);
    assert!(is_cut(&dnsd, &log, "com.cluster.test").await);
    let name = "API.example.COM.cluster.test";
    let answer = dnsd.ask(name).await.unwrap();
    assert_eq!(
        extended_error(&answer),
        Some(29),
        "RFC 8914 section 4.30: Synthesized"
    );
    assert_eq!(answer.queries[0].name.to_ascii(), format!("{name}."));
    assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
    let [soa] = answer.authorities.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (soa.name.to_ascii().as_str(), soa.record_type()),
        ("test.", RecordType::SOA)
    );
    assert!(
        (15..=20).contains(&soa.ttl),
        "counted down from the lowest, RFC 2308 section 5: {}",
        soa.ttl
    );
    let plain = dnsd
        .ask_at(dnsd.address, &query(name, RecordType::A, None))
        .await
        .unwrap();
    assert!(plain.edns.is_none() && plain.authorities.len() == 1);
}

#[tokio::test]
async fn existing_names_are_found_beside_and_below_denied_names() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("exists", "cluster.test clusterset.test", &upstream, OPTIONS);
    for place in [
        "com.shop.svc.cluster.test",
        "web.shop.svc.cluster.test",
        "db.shop.svc.cluster.test",
        "shop.svc.cluster.test",
        "web.shop.svc.clusterset.test",
    ] {
        for label in ["a.x", "b.x", "c.x"] {
            assert_eq!(dnsd.says(&format!("{label}.{place}")).await, "NXDomain");
        }
    }
    log.has("shop.svc.cluster.test").await;
    for (name, kind, said) in [
        ("web.shop.svc.cluster.test", RecordType::A, "NoError 10.0.0.9"),
        (
            "pod-0.web.shop.svc.cluster.test",
            RecordType::A,
            "NoError 10.0.0.9",
        ),
        (
            "_http._tcp.web.shop.svc.cluster.test",
            RecordType::SRV,
            "NoError 0 0 80 pod-0.web.shop.svc.cluster.test.",
        ),
        (
            "db.shop.svc.cluster.test",
            RecordType::A,
            "NoError db.example.test. 203.0.113.7",
        ),
        (
            "pod-0.east.web.shop.svc.clusterset.test",
            RecordType::A,
            "NoError 10.0.0.9",
        ),
        ("ns.dns.cluster.test", RecordType::A, "NoError 10.0.0.9"),
        (
            "10-0-0-9.shop.pod.cluster.test",
            RecordType::A,
            "NoError 10.0.0.9",
        ),
    ] {
        let answer = dnsd
            .ask_at(dnsd.address, &query(name, kind, Some(1232)))
            .await
            .unwrap();
        assert_eq!(in_short(&answer), said, "{name}");
    }
    for spared in [
        "pod.cluster.test",
        "dns.cluster.test",
        "_tcp.web.shop.svc.cluster.test",
    ] {
        assert!(stays_open(&dnsd, &log, spared).await, "{spared}");
    }
}

#[tokio::test]
async fn an_existing_candidate_is_queried_once_and_names_below_it_always() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("once", "cluster.test", &upstream, OPTIONS);
    assert!(stays_open(&dnsd, &log, "web.shop.svc.cluster.test").await);
    assert!(is_asked_once(&log, "web.shop.svc.cluster.test"));
    assert!(is_asked_once(&log, "shop.svc.cluster.test"));
}

#[tokio::test]
async fn an_existing_name_below_a_denied_one_prevents_a_cut() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("odd", "cluster.test", &upstream, OPTIONS);
    let odd = "deep.odd.shop.svc.cluster.test";
    assert_eq!(dnsd.says(odd).await, "NoError 10.0.0.9");
    assert!(stays_open(&dnsd, &log, "odd.shop.svc.cluster.test").await);
    assert_eq!(log.count("odd.shop.svc.cluster.test"), 0);
}

#[tokio::test]
async fn local_plugins_answer_below_denied_names() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    for (test, own, said) in [
        (
            "hosts",
            "hosts {\n 10.0.0.5 own.x.com.cluster.test\n fallthrough\n }",
            "NoError 10.0.0.5",
        ),
        (
            "template",
            "template IN A own.x.com.cluster.test {\n answer \"{{ .Name }} 30 IN A 10.0.0.5\"\n fallthrough\n }",
            "NoError 10.0.0.5",
        ),
        (
            "rewrite",
            "rewrite name own.x.com.cluster.test web.shop.svc.cluster.test",
            "NoError 10.0.0.9",
        ),
    ] {
        let corefile = format!(
            "cluster.test {{\n bind 127.0.0.1\n cache 30\n {own}\n forward . {}\n}}\n",
            upstream.address
        );
        let dnsd = started(test, &corefile, OPTIONS);
        assert!(stays_open(&dnsd, &log, "com.cluster.test").await, "{test}");
        assert_eq!(dnsd.says("own.x.com.cluster.test").await, said, "{test}");
    }
}

#[tokio::test]
async fn dns64_makes_no_address_below_a_cut() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let corefile = format!(
        "cluster.test {{\n bind 127.0.0.1\n cache 30\n dns64 {{\n prefix 2001:db8:64::/96\n allow_ipv4\n }}\n \
         forward . {}\n}}\n",
        upstream.address
    );
    let dnsd = started("dns64", &corefile, OPTIONS);
    assert!(is_cut(&dnsd, &log, "com.cluster.test").await);
    for (name, said) in [
        ("api.example.com.cluster.test", "NXDomain"),
        ("web.shop.svc.cluster.test", "NoError 2001:db8:64::a00:9"),
    ] {
        let question = query(name, RecordType::AAAA, None);
        let answer = dnsd.ask_at(dnsd.address, &question).await.unwrap();
        assert_eq!(in_short(&answer), said);
    }
    assert_eq!(log.count("api.example.com.cluster.test"), 0);
}

#[tokio::test]
async fn a_block_with_a_longer_zone_has_cuts_of_its_own() {
    let (log, stub_log) = (Log::default(), Log::default());
    let upstream = cluster(&log).await;
    let stub = {
        let log = stub_log.clone();
        Upstream::start(move |query, _| {
            let (asked, _) = log.add(query);
            vec![
                response(query, vec![address(&asked, 30, "192.0.2.2")])
                    .to_vec()
                    .unwrap(),
            ]
        })
        .await
    };
    let block = |zone: &str, to: &Upstream| {
        format!(
            "{zone} {{\n bind 127.0.0.1\n cache 30\n forward . {}\n}}\n",
            to.address
        )
    };
    let corefile = block("cluster.test", &upstream) + &block("corp.com.cluster.test", &stub);
    let dnsd = started("deeper", &corefile, OPTIONS);
    assert!(is_cut(&dnsd, &log, "com.cluster.test").await);
    assert_eq!(dnsd.says("a.b.corp.com.cluster.test").await, "NoError 192.0.2.2");
    assert_eq!(
        (stub_log.count("com.cluster.test"), log.count("com.cluster.test")),
        (0, 1)
    );
}

#[tokio::test]
async fn there_is_no_cut_when_it_is_off_outside_the_cluster_or_after_a_failure() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    for (test, options) in [
        ("off", "clusterDomains: [cluster.test]\nnxdomainCut: false\n"),
        ("none", "clusterDomains: [other.test]\n"),
    ] {
        let dnsd = dnsd(test, ".", &upstream, options);
        assert!(stays_open(&dnsd, &log, "com.cluster.test").await, "{test}");
    }
    let failing = {
        let log = log.clone();
        Upstream::start(move |query, _| {
            let (asked, kind) = log.add(query);
            let answer = in_cluster(query, &asked, kind);
            let answer = match asked.as_str() {
                "refused.cluster.test" => with_code(response(query, Vec::new()), ResponseCode::Refused),
                "failing.cluster.test" => with_code(response(query, Vec::new()), ResponseCode::ServFail),
                "bare.cluster.test" => with_code(response(query, Vec::new()), ResponseCode::NXDomain),
                _other => answer,
            };
            vec![answer.to_vec().unwrap()]
        })
        .await
    };
    let dnsd = dnsd("failing", "cluster.test", &failing, OPTIONS);
    for place in [
        "refused.cluster.test",
        "failing.cluster.test",
        "bare.cluster.test",
    ] {
        assert!(stays_open(&dnsd, &log, place).await, "{place}");
        assert!(is_asked_once(&log, place), "{place}: not again at once");
    }
}

#[tokio::test]
async fn a_configured_zone_is_cut_one_label_below_it() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let options = "clusterDomains: [cluster.test]\nnxdomainCutZones: [host.test]\n";
    let dnsd = dnsd("further", ".", &upstream, options);
    assert!(is_cut(&dnsd, &log, "com.host.test").await);
    assert!(is_cut(&dnsd, &log, "svc.host.test").await, "it is no cluster's");
    assert!(stays_open(&dnsd, &log, "com.elsewhere.test").await);
}

#[tokio::test]
async fn a_flood_of_labels_causes_no_candidate_queries() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("flood", "cluster.test", &upstream, OPTIONS);
    // A service of it was asked for: the namespace needs no question.
    dnsd.says("web.shop.svc.cluster.test").await;
    for number in 0..300 {
        for ending in ["shop.svc.cluster.test", "svc.cluster.test", "cluster.test"] {
            dnsd.says(&format!("x.y.r{number}.{ending}")).await;
        }
    }
    for number in 0..300 {
        for ending in ["shop.svc.cluster.test", "svc.cluster.test", "cluster.test"] {
            assert_eq!(log.count(&format!("r{number}.{ending}")), 0);
        }
    }
}

#[tokio::test]
async fn queries_with_do_have_cuts_of_their_own() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("do", "cluster.test", &upstream, OPTIONS);
    assert!(is_cut(&dnsd, &log, "com.cluster.test").await);
    let ask = async |name: &str| {
        let mut with_do = Message::from_vec(&query(name, RecordType::A, Some(1232))).unwrap();
        with_do.edns.as_mut().unwrap().set_dnssec_ok(true);
        let answer = dnsd.ask_at(dnsd.address, &with_do.to_vec().unwrap()).await;
        in_short(&answer.unwrap())
    };
    let name = "api.example.com.cluster.test";
    assert_eq!((ask(name).await.as_str(), log.count(name)), ("NXDomain", 1));
    // The pre-query is answered in the background.
    let mut unasked = false;
    for attempt in 0..100 {
        let name = format!("do-{attempt}.example.com.cluster.test");
        assert_eq!(ask(&name).await, "NXDomain");
        unasked = log.count(&name) == 0;
        if unasked {
            break;
        }
    }
    assert!(unasked, "what is below is denied here");
    assert_eq!(log.count("com.cluster.test"), 2, "once for each");
}

#[tokio::test]
async fn a_waiting_query_is_not_sent_after_a_cut_is_made() {
    let log = Log::default();
    let upstream = cluster(&log).await;
    let dnsd = dnsd("late", "cluster.test", &upstream, OPTIONS);
    let name = "a.example.com.cluster.test";
    let late = dnsd.missed(&query(name, RecordType::AAAA, None));
    assert!(is_cut(&dnsd, &log, "com.cluster.test").await);
    let reply = Message::from_vec(&late.reply().await.unwrap()).unwrap();
    assert_eq!(in_short(&reply), "NXDomain");
    assert_eq!(log.count(name), 0);
}
