//! What a cluster asks, of servers that have just been started: most of it are names that there are not.

use crate::Situations;
use crate::answers::unchecked;
use crate::configurations::Configuration;
use crate::enforcer;
use crate::generator::{Pace, ask};
use crate::node::{ASKING, Node};
use crate::questions::of_cluster;
use crate::report::Situation;
use crate::servers::{self, Start};

/// At a rate that all servers stand.
pub(crate) fn all_stand(rounds: u32) -> anyhow::Result<Situations> {
    let situation = Situation::new(
        "mix, 3,000/s",
        "Kubernetes mix, 16 of 110 pods, 3,000 a second, 15,000 questions after 5,000 that met empty caches",
    );
    measure(rounds, 20_000, 3_000.0, situation)
}

/// At a rate that the slowest of them nearly fills: less of what is counted is waking up.
pub(crate) fn brisk(rounds: u32) -> anyhow::Result<Situations> {
    let situation = Situation::new(
        "mix, 8,000/s",
        "Kubernetes mix, 16 of 110 pods, 8,000 a second, 30,000 questions after 10,000 that met empty caches",
    );
    measure(rounds, 40_000, 8_000.0, situation)
}

/// At a rate at which who is slow loses.
pub(crate) fn fast(rounds: u32) -> anyhow::Result<Situations> {
    let situation = Situation::new(
        "mix, 20,000/s",
        "Kubernetes mix, 16 of 110 pods, 20,000 a second, 75,000 questions after 25,000 that met empty caches",
    );
    measure(rounds, 100_000, 20_000.0, situation)
}

/// With the Corefile that node-local-dns comes with. The first quarter is not counted but where it is lost.
fn measure(rounds: u32, count: usize, rate: f64, mut situation: Situation) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let _enforcer = enforcer::start(&node.world)?;
    let (asked, pace) = (of_cluster(count), Pace::PerSecond(rate));
    let (before, counted) = asked.split_at(count / 4);
    for _ in 0..rounds {
        for start in servers::STARTS.into_iter().chain([
            servers::ours_with_search_domain as Start,
            servers::ours_without_search_domain,
        ]) {
            // One at a time, and from its start: each has an empty cache.
            let Some(server) = start(&node, Configuration::Stock)? else {
                continue;
            };
            let sockets = node.sockets(server.address, ASKING)?;
            let (warm, upstream) = (ask(&sockets, pace, before)?, server.upstream_queries());
            let mut round = unchecked(&server, &sockets, pace, counted)?;
            round.run.lost += warm.lost;
            round.upstream += upstream;
            situation.note(server.name, round);
        }
    }
    situation.print();
    Ok(vec![situation])
}
