//! What a CNI plugin reports of a pod is as good as the pod's status, until the status says something itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::sync::Arc;

use egret_policies::compiler::{Compiler, Event, InSync, NetworkNotCovered, PodNetwork};
use egret_policies::model::cluster::{Entity, EntityKey, Pod, PodLife};
use egret_policies::rules::Batch;

use fixture::*;

const POD: &str = "default/late";

/// The Pod object of one run, with these addresses in its status.
fn run(uid: &str, addresses: &[&str]) -> Pod {
    Pod {
        uid: Some(uid.into()),
        ..pod(POD, "app=late", addresses)
    }
}

fn network(uid: Option<&str>, addresses: &[&str]) -> PodNetwork {
    PodNetwork {
        pod: key(POD),
        uid: uid.map(Arc::from),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
    }
}

fn applied(pod: Pod) -> Event {
    Event::Apply(Entity::Pod(pod))
}

fn added(uid: Option<&str>, addresses: &[&str]) -> Event {
    Event::NetworkAdded(network(uid, addresses))
}

fn removed() -> Event {
    Event::NetworkRemoved(key(POD))
}

fn deleted() -> Event {
    Event::Delete(EntityKey::Pod(key(POD)))
}

/// A cluster with a policy that selects the pod and one that names it as a peer of another.
fn cluster() -> Compiler<InSync> {
    let mut compiler = Compiler::new(settings());
    for entity in [
        Entity::Pod(pod("default/server", "app=server", &["10.0.0.9"])),
        Entity::Policy(network_policy("default/egress", "app=late").egress(vec![allow(pods("app=server"))])),
        Entity::Policy(
            network_policy("default/ingress", "app=server").ingress(vec![allow(pods("app=late"))]),
        ),
    ] {
        compiler.handle(Event::Apply(entity), START);
    }
    compiler.in_sync()
}

fn batches(compiler: &mut Compiler<InSync>) -> Vec<Batch> {
    std::iter::from_fn(|| compiler.poll_batch(START)).collect()
}

/// The addresses for which the compiler has rules of the pod after these events, in one batch or in one for each.
fn addresses_after(events: &[Event]) -> Option<Vec<String>> {
    let outcomes = [true, false].map(|is_each| {
        let mut compiler = cluster();
        let mut found = None;
        let mut take = |compiler: &mut Compiler<InSync>| {
            for batch in batches(compiler) {
                if batch.pods_removed.contains(&key(POD)) {
                    found = None;
                }
                for rules in batch.rules_replaced.iter().filter(|rules| rules.pod == key(POD)) {
                    found = Some(rules.addresses.iter().map(ToString::to_string).collect());
                }
            }
        };
        for event in events {
            compiler.handle(event.clone(), START);
            if is_each {
                take(&mut compiler);
            }
        }
        take(&mut compiler);
        found
    });
    assert_eq!(outcomes[0], outcomes[1], "{events:?}");
    outcomes[0].clone()
}

#[test]
fn the_status_counts_once_it_says_something() {
    const A: &[&str] = &["10.0.0.1"];
    const B: &[&str] = &["10.0.0.2"];
    for (what, events, expected) in [
        (
            "no status yet",
            vec![applied(run("1", &[])), added(Some("1"), A)],
            Some(A),
        ),
        (
            "the object comes later",
            vec![added(Some("1"), A), applied(run("1", &[]))],
            Some(A),
        ),
        (
            "a runtime that says no uid",
            vec![applied(run("1", &[])), added(None, A)],
            Some(A),
        ),
        ("no report", vec![applied(run("1", &[]))], None),
        ("no object", vec![added(Some("1"), A)], None),
        (
            "removed",
            vec![applied(run("1", &[])), added(Some("1"), A), removed()],
            None,
        ),
        (
            "the status agrees",
            vec![
                applied(run("1", &[])),
                added(Some("1"), A),
                applied(run("1", A)),
                removed(),
            ],
            Some(A),
        ),
        (
            "the status differs",
            vec![applied(run("1", &[])), added(Some("1"), A), applied(run("1", B))],
            Some(B),
        ),
        (
            "the status of before the report",
            vec![applied(run("1", A)), added(Some("1"), B)],
            Some(B),
        ),
        (
            "the same status again",
            vec![
                applied(run("1", A)),
                added(Some("1"), B),
                applied(Pod {
                    labels: labels("app=other"),
                    ..run("1", A)
                }),
            ],
            Some(B),
        ),
        (
            "removed, and a status of before",
            vec![applied(run("1", A)), added(Some("1"), B), removed()],
            Some(A),
        ),
        (
            "added twice",
            vec![applied(run("1", &[])), added(Some("1"), A), added(Some("1"), B)],
            Some(B),
        ),
        (
            "added twice, then removed",
            vec![
                applied(run("1", &[])),
                added(Some("1"), A),
                added(Some("1"), B),
                removed(),
            ],
            None,
        ),
        (
            "another run's report",
            vec![applied(run("1", A)), added(Some("2"), B)],
            Some(A),
        ),
        (
            "another run takes over",
            vec![applied(run("1", A)), added(Some("2"), B), applied(run("2", &[]))],
            Some(B),
        ),
        (
            "and the object of before is deleted first",
            vec![
                applied(run("1", A)),
                added(Some("2"), B),
                deleted(),
                applied(run("2", &[])),
            ],
            Some(B),
        ),
        (
            "the report goes with its object",
            vec![
                applied(run("1", &[])),
                added(Some("1"), A),
                deleted(),
                applied(run("1", &[])),
            ],
            None,
        ),
        (
            "a pod that is done",
            vec![
                applied(Pod {
                    life: PodLife::Terminal,
                    ..run("1", &[])
                }),
                added(Some("1"), A),
            ],
            None,
        ),
    ] {
        let expected = expected.map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(addresses_after(&events), expected, "{what}");
    }
}

#[test]
fn a_pod_that_others_name_is_in_their_sets_with_the_same_batches() {
    let mut with_report = cluster();
    with_report.handle(applied(run("1", &[])), START);
    batches(&mut with_report);
    with_report.handle(added(Some("1"), &["10.0.0.1"]), START);
    let mut with_status = cluster();
    with_status.handle(applied(run("1", &[])), START);
    batches(&mut with_status);
    with_status.handle(applied(run("1", &["10.0.0.1"])), START);
    let (reported, status) = (batches(&mut with_report), batches(&mut with_status));
    assert_eq!(reported, status);
    assert!(
        reported
            .iter()
            .any(|batch| !batch.members_changed.is_empty() || !batch.sets_created.is_empty()),
        "{reported:?}"
    );
}

#[test]
fn why_a_network_is_not_covered_is_said() {
    let check = |events: &[Event]| {
        let mut compiler = cluster();
        for event in events {
            compiler.handle(event.clone(), START);
        }
        compiler.check_network(&network(Some("1"), &["10.0.0.1"]))
    };
    let report = || added(Some("1"), &["10.0.0.1"]);
    assert_eq!(check(&[report(), applied(run("1", &[]))]), Ok(()));
    let key = || key(POD);
    for (events, expected) in [
        (vec![report()], NetworkNotCovered::NoPod(key())),
        (
            vec![report(), applied(run("2", &[]))],
            NetworkNotCovered::OtherRun {
                pod: key(),
                found: "2".into(),
            },
        ),
        (
            vec![
                report(),
                applied(Pod {
                    node: Some("elsewhere".into()),
                    ..run("1", &[])
                }),
            ],
            NetworkNotCovered::OtherNode(key()),
        ),
        (
            vec![
                report(),
                applied(Pod {
                    host_network: true,
                    ..run("1", &[])
                }),
            ],
            NetworkNotCovered::NoNetwork(key()),
        ),
        (
            vec![report(), applied(run("1", &["10.0.0.2"]))],
            NetworkNotCovered::OtherAddresses {
                pod: key(),
                address: ip("10.0.0.1"),
            },
        ),
        (
            vec![
                applied(Pod {
                    started: Some("2030".into()),
                    ..pod("default/newer", "", &["10.0.0.1"])
                }),
                applied(run("1", &[])),
                report(),
            ],
            NetworkNotCovered::OtherAddresses {
                pod: key(),
                address: ip("10.0.0.1"),
            },
        ),
    ] {
        assert_eq!(check(&events), Err(expected));
    }
}
