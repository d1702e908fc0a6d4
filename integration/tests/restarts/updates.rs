//! Both daemons are replaced under load, as a DaemonSet replaces them: with `maxSurge` the new process is started beside the
//! old one, which is told to end when the new one is ready; without, it is started when the old one has ended.

use egret_integration::{Daemon, DaemonSpec, LoadPlan, World, upstream, within};

use crate::daemons::{WHOLE_WITHIN, is_usable_at_once};
use crate::report::say;
use crate::{ATTEMPT, EnforcedBy, GRACE, TestResult, start_loads, world_with_names};

/// Of each daemon, in each manner.
const UPDATES: usize = 4;
/// Longer than a new enforcer takes until it writes, so that an answer waits for it.
const STALL_DEADLINE: &str = "3s";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Surge,
    OneAfterTheOther,
}

/// A daemon's pod on this node.
struct Pod {
    spec: DaemonSpec,
    running: Daemon,
    updates: usize,
}

impl Pod {
    fn start(world: &World, spec: DaemonSpec) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self {
            running: world.start(spec.clone())?,
            spec,
            updates: 0,
        })
    }

    fn update(&mut self, world: &World, manner: Manner) -> TestResult {
        self.updates += 1;
        let mut spec = self.spec.clone();
        spec.name = format!("{}-{}", spec.name, self.updates);
        let mut new = match manner {
            Manner::Surge => {
                let new = world.launch(spec)?;
                // Both have one address for probes, at which the old one answers first: `minReadySeconds` is longer.
                within(WHOLE_WITHIN, "it is in place, or waits for the old one", || {
                    let log = new.log();
                    log.contains("\"ready\"") || log.contains("waiting until it ends")
                });
                new
            }
            Manner::OneAfterTheOther => {
                self.end()?;
                world.start(spec)?
            }
        };
        std::mem::swap(&mut self.running, &mut new);
        if manner == Manner::Surge {
            let end = new.terminate()?;
            assert!(end.success(), "{end}: {}", new.log());
        }
        within(WHOLE_WITHIN, "the new one is ready", || {
            self.running
                .get(&self.spec.ready)
                .is_ok_and(|(code, _)| code == 200)
        });
        Ok(())
    }

    fn end(&mut self) -> TestResult {
        let end = self.running.terminate()?;
        assert!(end.success(), "{end}: {}", self.running.log());
        Ok(())
    }
}

/// As a DaemonSet starts it: somebody would start it again.
fn dnsd(world: &World) -> DaemonSpec {
    let handover = world.files().join("handover.sock").display().to_string();
    let spec = world.dnsd().with(["--rules", "--handover", &handover]);
    spec.with(["--stall-deadline", STALL_DEADLINE])
        .with_variable("INVOCATION_ID", "4c6e")
}

#[test]
fn an_update_of_both_daemons_changes_no_verdict_and_loses_no_question() -> TestResult {
    let Some(world) = world_with_names(EnforcedBy::Netfilter, 8 * UPDATES) else {
        return Ok(());
    };
    let mut enforcer = Pod::start(
        &world,
        world.enforcer("netfilter").with(["--record-grace", GRACE]),
    )?;
    let mut dnsd = Pod::start(&world, dnsd(&world))?;
    let mut names = 0;
    let mut wait_until_whole = || {
        within(WHOLE_WITHIN, "a fresh name is usable at once", || {
            names += 1;
            is_usable_at_once(&world, &format!("{names}.again.example.test"))
        })
    };
    let _took = wait_until_whole();
    let [life, client_knocks, other_knocks] = start_loads(&world);
    assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.connections > 10 && seen.echoes > 4));
    for _update in 0..UPDATES {
        for manner in [Manner::Surge, Manner::OneAfterTheOther] {
            enforcer.update(&world, manner)?;
            let _took = wait_until_whole();
            dnsd.update(&world, Manner::Surge)?;
            let _took = wait_until_whole();
            let (lookups, refusals) = (life.report().lookups, other_knocks.report().refusals);
            assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.lookups > lookups + 5));
            assert!(other_knocks.wait_for(WHOLE_WITHIN, |seen| seen.refusals > refusals));
        }
    }
    let (life, knocks) = (life.stop(), [client_knocks.stop(), other_knocks.stop()]);
    let leaked = life.leaked + knocks.iter().map(|knocks| knocks.leaked).sum::<usize>();
    say(&format!(
        "updates: {} connections, {} look-ups, {} echoes, {} refusals: lost {}, late {}, leaked {leaked}, unanswered {}",
        life.connections,
        life.lookups,
        life.echoes,
        knocks[0].refusals + knocks[1].refusals,
        life.lost,
        life.late,
        life.lookups_unanswered
    ));
    assert_eq!(
        (life.lost, life.late, leaked, life.lookups_unanswered),
        (0, 0, 0, 0),
        "{life:#?}"
    );
    Ok(())
}

/// Names that only dnsd opens are closed meanwhile: nobody records what the cluster DNS answers.
#[test]
fn a_dnsd_that_ends_before_the_next_one_starts_leaves_questions_to_the_cluster_dns() -> TestResult {
    let Some(world) = world_with_names(EnforcedBy::Netfilter, 2 * UPDATES) else {
        return Ok(());
    };
    let servers = [
        format!("{}:{}", upstream::ADDRESS, upstream::PORT),
        format!("[{}]:{}", upstream::ADDRESS_V6, upstream::PORT),
    ];
    let spec = servers.into_iter().fold(dnsd(&world), |spec, server| {
        spec.with(["--fallback-server".to_owned(), server])
    });
    let _enforcer = world.start(world.enforcer("netfilter"))?;
    // Without it interface and rules go as well.
    let mut dnsd = Pod::start(&world, spec.with(["--skip-teardown"]))?;
    let plan = LoadPlan {
        attempt: ATTEMPT,
        ..LoadPlan::of(["{}.fresh.example.test"])
    };
    let life = world.load("bystander", plan);
    assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.connections > 10));
    for _update in 0..UPDATES {
        dnsd.update(&world, Manner::OneAfterTheOther)?;
        let lookups = life.report().lookups;
        assert!(life.wait_for(WHOLE_WITHIN, |seen| seen.lookups > lookups + 5));
    }
    let life = life.stop();
    assert_eq!((life.lost, life.lookups_unanswered), (0, 0), "{life:#?}");
    dnsd.end()
}
