//! The failures that a daemon meets.

use egret_integration::{LoadPlan, World};

use crate::{
    POLICY, TestResult,
    daemons::{Daemons, Victim, WHOLE_WITHIN},
    report::Seeded,
    verdicts::realize,
};

/// A policy of another pod, so that the enforcer has rules to write.
const UNRELATED: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: unrelated, namespace: default}
spec:
  podSelector: {matchLabels: {app: sideline}}
  policyTypes: [Ingress, Egress]
";

pub(crate) type Failure = fn(&mut Daemons, &World, Victim, &mut Seeded) -> TestResult;

pub(crate) const FAILURES: &[(&str, Failure)] = &[
    ("killed at rest", |daemons, _, victim, _| {
        Ok(daemons.of(victim).kill().map(drop)?)
    }),
    ("asked to end", |daemons, _, victim, _| {
        let end = daemons.of(victim).terminate()?;
        assert!(end.success(), "{victim:?}: {end}");
        Ok(())
    }),
    ("hung, then killed", |daemons, _, victim, random| {
        daemons.of(victim).stop()?;
        std::thread::sleep(random.span(10..400));
        Ok(daemons.of(victim).kill().map(drop)?)
    }),
    (
        "killed while it answers and realizes",
        |daemons, world, victim, random| {
            let load = world.load("client", LoadPlan::of(["{}.fresh.example.test"]));
            load.wait_for(WHOLE_WITHIN, |seen| seen.connections > 3);
            std::thread::sleep(random.span(0..60));
            Ok(daemons.of(victim).kill().map(drop)?)
        },
    ),
    (
        "killed while it starts, four times",
        |daemons, _, victim, random| {
            for _ in 0..4 {
                daemons.of(victim).restart()?;
                std::thread::sleep(random.span(0..80));
                daemons.of(victim).kill()?;
            }
            Ok(())
        },
    ),
    (
        "killed while another pod's policy changes",
        |daemons, world, victim, random| {
            world.manifests().write("unrelated.yaml", UNRELATED)?;
            std::thread::sleep(random.span(0..60));
            daemons.of(victim).kill()?;
            daemons.bring_back(world)?;
            world.manifests().remove("unrelated.yaml")?;
            std::thread::sleep(random.span(0..60));
            Ok(daemons.of(victim).kill().map(drop)?)
        },
    ),
    (
        "killed while its pods' policy gets one more name, three times",
        |daemons, world, victim, random| {
            for round in 0..3 {
                realize(world)?;
                let wider = POLICY.replace("domainNames: [", &format!("domainNames: [more{round}.example, "));
                world.manifests().write("policy.yaml", &wider)?;
                std::thread::sleep(random.span(0..300));
                daemons.of(victim).kill()?;
                daemons.bring_back(world)?;
            }
            Ok(())
        },
    ),
    ("killed together with the other", |daemons, _, victim, random| {
        daemons.dnsd.kill()?;
        daemons.enforcer.kill()?;
        std::thread::sleep(random.span(0..200));
        daemons.of(victim).restart()?;
        std::thread::sleep(random.span(0..200));
        Ok(())
    }),
    (
        "killed before the other, and their pods' policy gets one more name before either is back",
        |daemons, world, victim, random| {
            let (then, name) = match victim {
                Victim::Dnsd => (Victim::Enforcer, "later"),
                Victim::Enforcer => (Victim::Dnsd, "latest"),
            };
            daemons.of(victim).kill()?;
            std::thread::sleep(random.span(0..300));
            daemons.of(then).kill()?;
            let wider = POLICY.replace("domainNames: [", &format!("domainNames: [{name}.example, "));
            world.manifests().write("policy.yaml", &wider)?;
            Ok(())
        },
    ),
];
