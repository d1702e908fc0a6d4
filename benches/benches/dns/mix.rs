//! What a cluster asks, of servers that have just been started: most of it are names that there are not.

use crate::Situations;
use crate::answers::unchecked;
use crate::enforcer;
use crate::generator::{Pace, ask};
use crate::node::{ASKING, Node};
use crate::questions::of_cluster;
use crate::report::Situation;
use crate::servers::{self, Told};

/// So many questions, of which the first quarter meets empty caches and is not counted but where it is lost.
const QUESTIONS: usize = 100_000;
const PACE: Pace = Pace::PerSecond(20_000.0);

/// With the Corefile that node-local-dns comes with.
pub(crate) fn measure(rounds: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let _enforcer = enforcer::start(&node.world)?;
    let asked = of_cluster(QUESTIONS);
    let (before, counted) = asked.split_at(QUESTIONS / 4);
    let mut situation = Situation::new(
        "mix, 20,000/s",
        "Kubernetes mix, 16 of 110 pods, 20,000 a second, 75,000 questions after 25,000 that met empty caches",
    );
    for _ in 0..rounds {
        for start in servers::STARTS {
            // One at a time, and from its start: each has an empty cache.
            let Some(server) = start(&node, Told::Stock)? else {
                continue;
            };
            let sockets = node.sockets(server.address, ASKING)?;
            let warm = ask(&sockets, PACE, before)?;
            let mut round = unchecked(&server, &sockets, PACE, counted)?;
            round.run.lost += warm.lost;
            situation.note(server.name, round);
        }
    }
    situation.print();
    Ok(vec![situation])
}
