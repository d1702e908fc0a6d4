//! A pod's daily life in the background of a test: look-ups, new connections, long-lived ones, and knocks at doors
//! that must stay shut. What goes wrong is counted under the name of what it means.
//!
//! - **lost**: a connection that was allowed did not come about, or an open one died;
//! - **leaked**: a connection that must be refused came about;
//! - **late**: an address was told, and only a later attempt to reach it succeeded.
//!
//! An address counts as allowed from the first connection to it until its TTL runs out; before that, attempts go on
//! for [`LoadPlan::patience`], and only then is it lost. Look-ups that nobody answers are counted by themselves:
//! whether they may happen (dnsd is being killed) is the test's to say.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hickory_proto::rr::RecordType;

use crate::{Connection, Lookup, Outcome, Pod, node};

/// Longer than a TCP retransmission or two: an open connection may be slow, it must not die.
const ECHO_PATIENCE: Duration = Duration::from_secs(3);

/// What the load consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// Names that are looked up and then connected to; `{}` becomes the number of the round, for names that only a
    /// wildcard covers.
    pub allowed: Vec<String>,
    /// Where those names' servers listen (an echo service).
    pub port: u16,
    /// Addresses that must never be reached.
    pub forbidden: Vec<SocketAddr>,
    /// Connections to allowed addresses that stay open and are asked again and again.
    pub long_lived: usize,
    /// Time between two rounds of each kind.
    pub pace: Duration,
    /// How long an attempt waits; shorter than the second after which the kernel repeats a SYN.
    pub attempt: Duration,
    /// How long attempts to a newly told address go on.
    pub patience: Duration,
    /// The DNS server that is asked.
    pub server: IpAddr,
}

impl LoadPlan {
    /// Twenty rounds a second against these names, on the echo port 7, with four long-lived connections.
    pub fn of<N: Into<String>>(allowed: impl IntoIterator<Item = N>) -> Self {
        Self {
            allowed: allowed.into_iter().map(Into::into).collect(),
            port: 7,
            forbidden: Vec::new(),
            long_lived: 4,
            pace: Duration::from_millis(50),
            attempt: Duration::from_millis(300),
            patience: Duration::from_secs(2),
            server: node::DNS.into(),
        }
    }

    #[must_use]
    pub fn asking(self, server: IpAddr) -> Self {
        Self { server, ..self }
    }

    #[must_use]
    pub fn forbidding(self, forbidden: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            forbidden: forbidden.into_iter().collect(),
            ..self
        }
    }
}

/// What the load has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub lookups: usize,
    pub lookups_unanswered: usize,
    pub connections: usize,
    pub echoes: usize,
    pub refusals: usize,
    pub lost: usize,
    pub leaked: usize,
    pub late: usize,
    pub latest: Duration,
    /// One line for each that was lost, leaked or late, with its time since the start.
    pub notes: Vec<String>,
}

impl LoadReport {
    /// Whether nothing was lost and nothing leaked.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.leaked == 0
    }
}

/// A load that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pod: Arc<Pod>,
    plan: LoadPlan,
    started: Instant,
    /// What was reached, and until when its record lives.
    told: Mutex<HashMap<IpAddr, Instant>>,
    report: Mutex<LoadReport>,
    reported: Condvar,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Load {
    pub(crate) fn start(pod: Arc<Pod>, plan: LoadPlan) -> Self {
        let shared = Arc::new(Shared {
            pod,
            plan,
            started: Instant::now(),
            told: Mutex::default(),
            report: Mutex::default(),
            reported: Condvar::new(),
            stopped: Mutex::default(),
            stop: Condvar::new(),
        });
        let jobs: [fn(&Shared); 4] = [look_up_and_reach, reach_again, hold_connections, knock];
        let threads = jobs.map(|job| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || job(&shared))
        });
        Self {
            shared,
            threads: threads.into(),
        }
    }

    /// What was seen so far.
    pub fn report(&self) -> LoadReport {
        self.shared.report().clone()
    }

    /// Waits until enough was seen; `false` if that does not happen in time.
    pub fn wait_for(&self, patience: Duration, enough: impl Fn(&LoadReport) -> bool) -> bool {
        let report = self.shared.report();
        let waited = self
            .shared
            .reported
            .wait_timeout_while(report, patience, |report| !enough(report));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends the load; what is under way is finished first.
    ///
    /// # Panics
    /// When a thread of the load has panicked.
    pub fn stop(mut self) -> LoadReport {
        self.shared.end();
        for thread in self.threads.drain(..) {
            thread.join().expect("the load runs to its end");
        }
        self.report()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            // Its panic has been printed, and the test that drops a load without its report fails for another reason.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn report(&self) -> MutexGuard<'_, LoadReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knows(&self, address: IpAddr) -> bool {
        self.told()
            .get(&address)
            .is_some_and(|until| *until > Instant::now())
    }

    /// What can be reached for one more attempt: what runs out while it is being tried proves nothing.
    fn known(&self) -> Vec<IpAddr> {
        let mut told = self.told();
        let after = Instant::now() + self.plan.attempt;
        told.retain(|_, until| *until > after);
        told.keys().copied().collect()
    }

    fn end(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.notify_all();
    }

    /// Tells what the last round has seen and waits for the next; `false` once the load shall end.
    fn goes_on(&self) -> bool {
        self.reported.notify_all();
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .stop
            .wait_timeout_while(stopped, self.plan.pace, |stopped| !*stopped);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn note(&self, what: &str, detail: impl std::fmt::Display) {
        let at = self.started.elapsed().as_millis();
        self.report().notes.push(format!("{at} ms: {what}: {detail}"));
    }

    fn connect(&self, address: IpAddr) -> Outcome {
        self.pod
            .connect_tcp(SocketAddr::new(address, self.plan.port), self.plan.attempt)
    }

    fn count_lost(&self, detail: impl std::fmt::Display) {
        self.report().lost += 1;
        self.note("lost", detail);
    }
}

/// New look-ups, and the first connections to what they tell.
fn look_up_and_reach(shared: &Shared) {
    for round in 0.. {
        if !shared.goes_on() || shared.plan.allowed.is_empty() {
            return;
        }
        let name = &shared.plan.allowed[round % shared.plan.allowed.len()];
        let name = name.replace("{}", &round.to_string());
        for (address, until) in look_up(shared, &name) {
            if shared.knows(address) || reach(shared, &name, address) {
                let mut told = shared.told();
                let known = told.entry(address).or_insert(until);
                *known = until.max(*known);
            }
        }
    }
}

/// New connections to what was reached before: they go on while nobody answers look-ups.
fn reach_again(shared: &Shared) {
    while shared.goes_on() {
        for address in shared.known() {
            shared.report().connections += 1;
            if let Some(failure) = failure_of(&shared.connect(address)) {
                shared.count_lost(format!("{address}, reached before: {failure}"));
            }
        }
    }
}

fn look_up(shared: &Shared, name: &str) -> Vec<(IpAddr, Instant)> {
    shared.report().lookups += 1;
    let asked = Lookup::of(name, RecordType::A)
        .at(shared.plan.server)
        .patience(Duration::from_secs(1));
    let Ok(reply) = shared.pod.look_up(&asked) else {
        shared.report().lookups_unanswered += 1;
        return Vec::new();
    };
    let until = Instant::now() + Duration::from_secs(reply.ttl().unwrap_or(0).into());
    reply
        .addresses()
        .into_iter()
        .map(|address| (address, until))
        .collect()
}

/// The first connections to a newly told address: at once, late, or never.
fn reach(shared: &Shared, name: &str, address: IpAddr) -> bool {
    let told = Instant::now();
    let mut failures = 0;
    loop {
        shared.report().connections += 1;
        let Some(failure) = failure_of(&shared.connect(address)) else {
            break;
        };
        failures += 1;
        if told.elapsed() > shared.plan.patience {
            shared.count_lost(format!("{name} at {address}: {failure}, {failures} times"));
            return false;
        }
        if !shared.goes_on() {
            return false;
        }
    }
    if failures > 0 {
        let took = told.elapsed();
        let mut report = shared.report();
        report.late += 1;
        report.latest = report.latest.max(took);
        drop(report);
        shared.note(
            "late",
            format!("{name} at {address} after {} ms", took.as_millis()),
        );
    }
    true
}

/// Connections that are opened once; each that dies is lost.
fn hold_connections(shared: &Shared) {
    let mut open: Vec<Connection> = Vec::new();
    let mut opened = 0;
    while shared.goes_on() {
        if opened < shared.plan.long_lived
            && let Some(connection) = open_one(shared, opened)
        {
            open.push(connection);
            opened += 1;
        }
        open.retain_mut(|connection| is_held(shared, connection));
    }
}

fn open_one(shared: &Shared, number: usize) -> Option<Connection> {
    let known = shared.known();
    let address = known.get(number % known.len().max(1))?;
    match shared.connect(*address) {
        Outcome::Connected(connection) => Some(connection),
        _ => None,
    }
}

fn is_held(shared: &Shared, connection: &mut Connection) -> bool {
    match connection.echo_within(ECHO_PATIENCE) {
        Ok(_) => shared.report().echoes += 1,
        Err(error) => {
            shared.count_lost(format!("an open connection to {:?}: {error}", connection.peer()));
            return false;
        }
    }
    true
}

/// Attempts that must fail.
fn knock(shared: &Shared) {
    while shared.goes_on() {
        for door in &shared.plan.forbidden {
            match shared.pod.connect_tcp(*door, shared.plan.attempt) {
                Outcome::Connected(_) => {
                    shared.report().leaked += 1;
                    shared.note("leaked", door);
                }
                _ => shared.report().refusals += 1,
            }
        }
    }
}

fn failure_of(outcome: &Outcome) -> Option<String> {
    (!outcome.is_connected()).then(|| format!("{outcome:?}"))
}
