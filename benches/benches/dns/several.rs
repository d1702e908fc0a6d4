//! What a second thread of dnsd brings where more is asked than one answers. Both CPUs are everybody's: dnsd's, the
//! generator's, the upstream's and the enforcer's. So a second thread can take no more than what the others leave.

use crate::Situations;
use crate::answers::{Fresh, cached_questions, fill, round};
use crate::enforcer;
use crate::generator::Pace;
use crate::meter;
use crate::node::{ASKING, Node};
use crate::report::{Situation, count, median};
use crate::servers;

/// How many threads, by turns.
const THREADS: [(&str, &str); 2] = [("1 thread", "1"), ("2 threads", "2")];
const NAMES: u32 = 4_000;
const CACHED: u32 = 200_000;
const FORWARDED: u32 = 20_000;
/// Enough that both threads find many at once.
const OUTSTANDING: Pace = Pace::Window(256);

/// Besides what a situation has of a round, by turns of one number of threads.
#[derive(Default)]
struct Beside {
    /// Voluntary switches for each reply.
    switches: Vec<f64>,
    /// Per cent of the datagrams that further threads read.
    helped: Vec<f64>,
}

pub(crate) fn measure(rounds: u32) -> anyhow::Result<Situations> {
    let node = Node::new()?;
    let _enforcer = enforcer::start(&node.world)?;
    meter::use_all_cpus()?;
    let mut situations = [
        Situation::new(
            "cached, threads",
            "Cached answer by threads, 16 pods, 4,000 names, 256 outstanding",
        ),
        Situation::new(
            "forwarded, threads",
            "Forwarded answer by threads, 16 pods, every name new, 256 outstanding",
        ),
    ];
    let mut beside: [[Beside; 2]; 2] = Default::default();
    let mut fresh = Fresh(0);
    for _ in 0..rounds {
        for (turn, (name, threads)) in THREADS.into_iter().enumerate() {
            let dnsd = servers::dnsd_of_threads(&node.world, threads)?;
            dnsd.meter.spread()?;
            dnsd.wait_for_interest()?;
            let sockets = node.sockets(dnsd.address, ASKING)?;
            fill(&dnsd, &sockets, NAMES)?;
            let asked = [cached_questions(NAMES, CACHED), fresh.take(FORWARDED)];
            for ((asked, situation), beside) in asked.iter().zip(&mut situations).zip(&mut beside) {
                let helped = || dnsd.counted("egret_dnsd_further_threads_datagrams_total");
                let before = (dnsd.meter.switches()?, helped()?);
                let round = round(&dnsd, &sockets, OUTSTANDING, asked)?;
                let replies = count(round.run.received());
                beside[turn]
                    .switches
                    .push((dnsd.meter.switches()? - before.0) / replies);
                beside[turn].helped.push(100.0 * (helped()? - before.1) / replies);
                situation.note(name, round);
            }
        }
    }
    for (situation, beside) in situations.iter().zip(beside) {
        situation.print();
        for ((name, _), beside) in THREADS.into_iter().zip(beside) {
            let (switches, helped) = (
                median(beside.switches.into_iter()),
                median(beside.helped.into_iter()),
            );
            println!(
                "{name}: {switches:.3} voluntary switches a reply, {helped:.0} % read by further threads"
            );
        }
    }
    meter::pin_this_thread(meter::GENERATOR)?;
    Ok(Vec::new())
}
