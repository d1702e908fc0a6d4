//! How long a change of a policy takes from its watch event to the first connection that it decides.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_integration::World;
use futures::TryStreamExt as _;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use crate::api::Api;

/// The pod that the policy selects.
pub(crate) const CLIENT: &str = "client";
const NAME: &str = "changed";
/// Two servers on the internet of the world, each of which echoes.
const SERVERS: [&str; 2] = ["203.0.113.7:7", "203.0.113.8:7"];
/// A connection is tried so often, and given up after this: what is measured is exact to it.
const STEP: Duration = Duration::from_millis(2);
/// Allowed whatever the policy says.
const ALWAYS: &str = "203.0.113.9";
/// Connections of a busy pod: so many that every change allows, and so many that every second change forbids.
const FLOWS: u16 = 5_000;
/// Where their ports begin.
const LOWEST: u16 = 10_000;
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives the pod its connections, if it is to have any: they live as long as the bench.
pub(crate) fn prepare(world: &World, is_busy: bool) -> anyhow::Result<()> {
    if !is_busy {
        return Ok(());
    }
    let netns = File::open(format!("/run/netns/{}", world.pod(CLIENT).netns_name()))?;
    world
        .node()
        .sysctl("netfilter/nf_conntrack_udp_timeout", "3600")?;
    let open = || {
        nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET)?;
        for server in [SERVERS[0], ALWAYS] {
            let server = server.split(':').next().context("an address")?;
            for port in LOWEST..LOWEST + FLOWS {
                UdpSocket::bind(("0.0.0.0", port))?.send_to(b"x", (server, 9))?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| scope.spawn(open).join())
        .map_err(|_panic| anyhow::anyhow!("the connections panicked"))?
}

/// Times to allow and to refuse, as text. Each change comes as soon as the one before is in force.
pub(crate) fn measure(world: &World, api: &Api, changes: usize) -> anyhow::Result<(String, String)> {
    let (arrivals, arrived) = mpsc::channel();
    let (wishes, mut wanted) = tokio::sync::mpsc::unbounded_channel::<usize>();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            api.with(|client| async move {
                let policies: kube::Api<NetworkPolicy> = kube::Api::namespaced(client, "default");
                let first = policy(0)?;
                match policies.create(&PostParams::default(), &first).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        policies
                            .patch(NAME, &PatchParams::default(), &Patch::Merge(first))
                            .await?;
                    }
                    created => drop(created?),
                }
                let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
                let mut objects = pin!(watcher(policies.clone(), only).applied_objects());
                // The object as it is.
                objects.try_next().await?.context("the watch begins")?;
                arrivals.send(Instant::now())?;
                while let Some(server) = wanted.recv().await {
                    policies
                        .patch(NAME, &PatchParams::default(), &Patch::Merge(policy(server)?))
                        .await?;
                    objects.try_next().await?.context("the watch goes on")?;
                    arrivals.send(Instant::now())?;
                }
                Ok(())
            })
        });
        let probes = probe(world, changes, &wishes, &arrived);
        drop(wishes);
        let client = client
            .join()
            .map_err(|_panic| anyhow::anyhow!("the watch panicked"))?;
        client.and(probes)
    })
}

fn probe(
    world: &World,
    changes: usize,
    wishes: &tokio::sync::mpsc::UnboundedSender<usize>,
    arrived: &mpsc::Receiver<Instant>,
) -> anyhow::Result<(String, String)> {
    let mut times = (Vec::new(), Vec::new());
    arrived.recv_timeout(PATIENCE)?;
    until(world, 0, true)?;
    for change in 1..=changes {
        let (opened, closed) = (change % 2, (change + 1) % 2);
        wishes.send(opened)?;
        let event = arrived.recv_timeout(PATIENCE)?;
        // One end of a change is looked at, in turn: each look takes time.
        if change / 2 % 2 == 0 {
            times.0.push(until(world, opened, true)?.duration_since(event));
            until(world, closed, false)?;
        } else {
            times.1.push(until(world, closed, false)?.duration_since(event));
            until(world, opened, true)?;
        }
    }
    Ok((quantiles(times.0), quantiles(times.1)))
}

/// When a connection to this server is first as it is to be.
fn until(world: &World, server: usize, is_open: bool) -> anyhow::Result<Instant> {
    let (to, begun): (SocketAddr, Instant) = (SERVERS[server].parse()?, Instant::now());
    loop {
        let tried = Instant::now();
        if world.pod(CLIENT).connect_tcp(to, STEP).is_connected() == is_open {
            return Ok(tried);
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "{to} is not as it is to be (open: {is_open})"
        );
    }
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e3;
    format!("{:.1} and {:.1} ms of {} changes", at(50), at(99), times.len())
}

fn policy(server: usize) -> anyhow::Result<NetworkPolicy> {
    let address = SERVERS[server].split(':').next().context("an address")?;
    let text = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "podSelector": {"matchLabels": {"app": CLIENT}},
            "policyTypes": ["Egress"],
            "egress": [{"to": [
                {"ipBlock": {"cidr": format!("{address}/32")}},
                {"ipBlock": {"cidr": format!("{ALWAYS}/32")}},
            ]}],
        },
    });
    Ok(serde_json::from_value(text)?)
}
