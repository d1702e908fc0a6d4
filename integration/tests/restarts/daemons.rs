//! Both daemons, their failures, and when they have recovered.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use egret_integration::{Daemon, Lookup, RecordType, World};

use crate::{ATTEMPT, GRACE, PORT, TestResult, report::Seeded};

const CATCH_UP_ATTEMPT: Duration = Duration::from_millis(20);
pub(crate) const WHOLE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Dnsd,
    Enforcer,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// SIGKILL; started again after this span.
    Killed(Duration),
    /// SIGSTOP; SIGCONT after this span.
    Hung(Duration),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Blow {
    pub(crate) victim: Victim,
    pub(crate) manner: Manner,
}

impl Blow {
    /// Each pair of daemon and failure equally often; times come from the seed.
    pub(crate) fn of_round(round: usize, random: &mut Seeded) -> Self {
        let victim = if round.is_multiple_of(2) {
            Victim::Enforcer
        } else {
            Victim::Dnsd
        };
        let manner = if round % 4 < 2 {
            Manner::Killed(random.span(0..500))
        } else {
            Manner::Hung(random.span(20..900))
        };
        Self { victim, manner }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnforcedBy {
    Netfilter,
    /// In a world whose pods are in cgroups.
    Ebpf,
}

pub(crate) struct Daemons {
    pub(crate) dnsd: Daemon,
    pub(crate) enforcer: Daemon,
    /// Each has a name that was not looked up before.
    pub(crate) checks: usize,
}

impl Daemons {
    pub(crate) fn start(world: &World) -> Result<Self, Box<dyn std::error::Error>> {
        let enforcer = match world.cgroup_root() {
            Some(_) => world.enforcer_at_cgroups("ebpf"),
            None => world.enforcer("netfilter"),
        };
        let mut daemons = Self {
            enforcer: world.start(enforcer.with(["--record-grace", GRACE]))?,
            dnsd: world.start(world.dnsd())?,
            checks: 0,
        };
        daemons.wait_until_whole(world)?;
        Ok(daemons)
    }

    pub(crate) fn fresh_name(&mut self) -> String {
        self.checks += 1;
        format!("{}.again.example.test", self.checks)
    }

    pub(crate) fn of(&mut self, victim: Victim) -> &mut Daemon {
        match victim {
            Victim::Dnsd => &mut self.dnsd,
            Victim::Enforcer => &mut self.enforcer,
        }
    }

    /// For a killed enforcer: the time from its restart until addresses observed meanwhile were usable.
    pub(crate) fn strike(
        &mut self,
        blow: &Blow,
        world: &World,
    ) -> Result<Option<Duration>, Box<dyn std::error::Error>> {
        let away = (blow.victim == Victim::Enforcer).then(|| self.fresh_name());
        let victim = self.of(blow.victim);
        let told = match blow.manner {
            Manner::Killed(span) => {
                victim.kill()?;
                std::thread::sleep(span);
                let told = away.map(|name| world.pod("client").resolve(&name, RecordType::A));
                victim.restart()?;
                told.transpose()?
            }
            Manner::Hung(span) => {
                victim.stop()?;
                std::thread::sleep(span);
                victim.cont()?;
                None
            }
        };
        victim.wait_until_ready()?;
        let returned = Instant::now();
        Ok(told.map(|told| {
            let usable = |address: IpAddr| {
                let door = SocketAddr::new(address, PORT);
                world
                    .pod("client")
                    .connect_tcp(door, CATCH_UP_ATTEMPT)
                    .is_connected()
            };
            while !told.addresses().into_iter().all(usable) && returned.elapsed() < WHOLE_WITHIN {}
            returned.elapsed()
        }))
    }

    pub(crate) fn bring_back(&mut self, world: &World) -> TestResult {
        for daemon in [&mut self.enforcer, &mut self.dnsd] {
            if !daemon.is_running() {
                daemon.restart()?;
            }
            daemon.wait_until_ready()?;
        }
        self.wait_until_whole(world)
    }

    /// Waits until an observed address is usable at once: all earlier observations are realized then, because the link keeps
    /// their order.
    pub(crate) fn wait_until_whole(&mut self, world: &World) -> TestResult {
        let begun = Instant::now();
        while begun.elapsed() < WHOLE_WITHIN {
            if is_usable_at_once(world, &self.fresh_name()) {
                return Ok(());
            }
        }
        Err(format!("no fresh name is usable at once within {WHOLE_WITHIN:?} of a return").into())
    }
}

pub(crate) fn is_usable_at_once(world: &World, name: &str) -> bool {
    let client = world.pod("client");
    let lookup = Lookup::of(name, RecordType::A).patience(Duration::from_millis(500));
    client.look_up(&lookup).is_ok_and(|reply| {
        let told = reply.addresses();
        let usable = |address: &IpAddr| {
            client
                .connect_tcp(SocketAddr::new(*address, PORT), ATTEMPT)
                .is_connected()
        };
        !told.is_empty() && told.iter().all(usable)
    })
}
