//! The usual setup of a scenario: pods, a policy, both daemons; and helpers for look-ups, connections and expectations.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use egret_integration::{
    Connection, Daemon, Lookup, LookupFailure, Metrics, Outcome, Pod, PodSpec, RecordType, Reply, Upstream,
    World,
};
pub(super) use egret_integration::{is_soon, within};

use nix::time::{ClockId, clock_gettime};

use super::backend_override;

/// An error means that the scenario could not run. A failed expectation is a panic.
pub(super) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// The timeout for an event that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The timeout of an attempt that may be dropped: below the second after which the kernel repeats a SYN.
pub(super) const QUICK: Duration = Duration::from_millis(300);
/// The time in which nothing may happen when nothing is expected.
pub(super) const MOMENT: Duration = Duration::from_millis(150);
/// The port of the echo servers.
const ECHO: u16 = 7;

/// The client may reach nobody; other pods may reach everybody.
pub(super) const CLIENT_ALONE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: client-alone
spec:
  tier: Admin
  priority: 10
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {app: client}}
  egress:
  - name: nothing
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#;

/// All pods may query the node's DNS and reach these names, and nothing else.
pub(super) fn only_names(names: &[&str]) -> String {
    let names = names
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: names
spec:
  tier: Admin
  priority: 10
  subject:
    namespaces: {{}}
  egress:
  - name: dns
    action: Accept
    to:
    - networks: [169.254.20.10/32, "fd00::20:10/128"]
    protocols:
    - udp: {{destinationPort: {{number: 53}}}}
    - tcp: {{destinationPort: {{number: 53}}}}
  - name: names
    action: Accept
    to:
    - domainNames: [{names}]
  - name: rest
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#
    )
}

/// The setup of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pods: Vec<PodSpec>,
    policy: String,
    backend: &'static str,
    dnsd: Vec<String>,
    enforcer: Vec<String>,
}

impl Setup {
    /// One pod `client`, this policy, the netfilter backend.
    pub(super) fn of(policy: impl Into<String>) -> Self {
        Self {
            pods: vec![PodSpec::new("client")],
            policy: policy.into(),
            backend: "netfilter",
            dnsd: Vec::new(),
            enforcer: Vec::new(),
        }
    }

    pub(super) fn and_pod(self, name: &str) -> Self {
        self.and(PodSpec::new(name))
    }

    pub(super) fn and(mut self, pod: PodSpec) -> Self {
        self.pods.push(pod);
        self
    }

    pub(super) fn instead(self, pods: impl IntoIterator<Item = PodSpec>) -> Self {
        Self {
            pods: pods.into_iter().collect(),
            ..self
        }
    }

    pub(super) fn backend(self, backend: &'static str) -> Self {
        Self { backend, ..self }
    }

    pub(super) fn dnsd(mut self, arguments: &[&str]) -> Self {
        self.dnsd
            .extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    pub(super) fn enforcer(mut self, arguments: &[&str]) -> Self {
        self.enforcer
            .extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Records end with their TTL.
    pub(super) fn without_grace(self) -> Self {
        self.enforcer(&["--record-grace", "0s"])
    }

    /// Held answers wait for as long as dnsd can.
    pub(super) fn patient(self) -> Self {
        self.dnsd(&["--stall-deadline", "4s"])
    }

    /// Adds the pods, writes the policy, starts both daemons and waits until they are joined.
    pub(super) fn deploy(self, world: &mut World) -> Result<Deployment<'_>, Box<dyn std::error::Error>> {
        for pod in self.pods {
            world.add(pod)?;
        }
        world.manifests().write("policy.yaml", &self.policy)?;
        let enforcer = match self.backend {
            "netfilter" => backend_override::enforcer(world),
            other => world.enforcer(other),
        };
        let enforcer = world.start(enforcer.with(self.enforcer))?;
        let dnsd = world.start(world.dnsd().with(self.dnsd))?;
        let deployment = Deployment {
            world,
            dnsd,
            enforcer,
        };
        deployment.wait_until_joined();
        Ok(deployment)
    }
}

/// A world with both daemons running. The daemons end before the world does.
#[derive(Debug)]
pub(super) struct Deployment<'w> {
    pub(super) world: &'w World,
    pub(super) dnsd: Daemon,
    pub(super) enforcer: Daemon,
}

impl Deployment<'_> {
    #[track_caller]
    pub(super) fn pod(&self, name: &str) -> &Pod {
        self.world.pod(name)
    }

    pub(super) fn upstream(&self) -> &Upstream {
        self.world.upstream()
    }

    /// The reply to the pod's query for A records.
    #[track_caller]
    pub(super) fn ask(&self, pod: &str, name: &str) -> Reply {
        self.ask_as(pod, &Lookup::of(name, RecordType::A))
    }

    #[track_caller]
    pub(super) fn ask_as(&self, pod: &str, lookup: &Lookup) -> Reply {
        match self.pod(pod).look_up(lookup) {
            Ok(reply) => reply,
            Err(failure) => panic!("{pod} got no answer: {failure}"),
        }
    }

    /// An attempt of the pod to connect to the echo server at this address.
    #[track_caller]
    pub(super) fn reach(&self, pod: &str, address: &str) -> Outcome {
        self.reach_port(pod, address, ECHO)
    }

    #[track_caller]
    pub(super) fn reach_port(&self, pod: &str, address: &str, port: u16) -> Outcome {
        self.pod(pod)
            .connect_tcp(SocketAddr::new(ip(address), port), QUICK)
    }

    #[track_caller]
    pub(super) fn assert_reaches(&self, pod: &str, address: &str) -> Connection {
        let outcome = self.reach(pod, address);
        assert!(outcome.is_connected(), "{pod} to {address}: {outcome:?}");
        outcome.connection()
    }

    /// Netfilter drops, cgroup hooks return EPERM.
    #[track_caller]
    pub(super) fn assert_refused(&self, pod: &str, address: &str) {
        let outcome = self.reach(pod, address);
        assert!(outcome.is_denied(), "{pod} to {address}: {outcome:?}");
    }

    /// Whether the kernel holds a record that lets the pod reach the address.
    /// Of eBPF the kernel is asked by a connection: there is no listing that says which pod may use a record.
    pub(super) fn kernel_holds(&self, pod: &str, address: &str) -> bool {
        if backend_override::is_ebpf() {
            return !matches!(self.reach(pod, address), Outcome::NotPermitted);
        }
        let held = self.world.node().holdings().expect("the kernel can be asked");
        held.holds(self.pod(pod), ip(address))
    }

    /// The addresses that the pod may reach by name, as the kernel has them.
    pub(super) fn kernel_records(&self, pod: &str) -> Vec<IpAddr> {
        self.kernel_records_left(pod).into_keys().collect()
    }

    /// The same, each with the seconds that it has left.
    pub(super) fn kernel_records_left(&self, pod: &str) -> BTreeMap<IpAddr, u64> {
        if backend_override::is_ebpf() {
            return self.records_in_maps(pod);
        }
        let held = self.world.node().holdings().expect("the kernel can be asked");
        held.records_of(self.pod(pod))
    }

    /// What the kernel holds of the enforcer and must not change when a daemon comes and goes: rules and sets, or maps and programs.
    pub(super) fn standing(&self) -> Vec<String> {
        match backend_override::pins() {
            Some(pins) => pins,
            None => self
                .world
                .node()
                .holdings()
                .expect("the kernel can be asked")
                .standing(),
        }
    }

    /// The enforcer reads the maps of its programs.
    fn records_in_maps(&self, pod: &str) -> BTreeMap<IpAddr, u64> {
        let (_, rules) = self.enforcer.get("/rules").expect("the enforcer answers");
        let pod = self.pod(pod);
        let of_pod = format!("{}/{}: record ", pod.namespace(), pod.name());
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every kernel has it");
        let now = Duration::from(now).as_millis();
        let records = rules.lines().filter_map(|line| {
            let (address, rest) = line.strip_prefix(&of_pod)?.split_once(' ')?;
            let until = rest.rsplit(' ').next()?.parse::<u128>().ok()?;
            let left = until.checked_sub(now).filter(|left| *left > 0)?;
            Some((ip(address), u64::try_from(left / 1000).ok()?))
        });
        records.collect()
    }

    /// Waits until dnsd is connected to the enforcer and has its interest.
    #[track_caller]
    pub(super) fn wait_until_joined(&self) {
        let knows_interest = |(_, page): (u16, String)| page.contains("have interest in names");
        eventually("dnsd and the enforcer are joined", || {
            metrics(&self.dnsd).sum("egret_dnsd_link_connected", &[]) == 1.0
                && self.dnsd.get("/readyz").is_ok_and(knows_interest)
        });
    }

    /// The sum of a metric of dnsd.
    #[track_caller]
    pub(super) fn dnsd_counted(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        metrics(&self.dnsd).sum(metric, labels)
    }
}

/// The enforcer repairs nothing that others change in its table of nftables: there nobody can stand before the source check.
pub(super) const REPAIRING_NOTHING: [&str; 2] = ["--resync", "0s"];

/// Inserts a foreign ACCEPT before the source check until the enforcer leaves the position to it: then dnsd is the first to check a
/// source address. With nftables it is in the chain itself.
pub(super) fn without_source_check(deployment: &Deployment<'_>) -> TestResult {
    const QUIET: Duration = Duration::from_secs(1);
    if backend_override::is_nftables() {
        let accept = ["nft", "insert", "rule", "inet", "egret", "source", "accept"];
        deployment.world.node().run_well(&accept)?;
        return Ok(());
    }
    let accept = ["-w", "-t", "raw", "-I", "PREROUTING", "-j", "ACCEPT"];
    let listed = ["-w", "-t", "raw", "-S", "PREROUTING", "1"];
    for program in ["iptables", "ip6tables"] {
        let mut since = std::time::Instant::now();
        while since.elapsed() < QUIET {
            let first = deployment
                .world
                .node()
                .run(&[&[program][..], &listed].concat())?
                .stdout;
            if first.trim_end() != "-A PREROUTING -j ACCEPT" {
                deployment
                    .world
                    .node()
                    .run_well(&[&[program][..], &accept].concat())?;
                since = std::time::Instant::now();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

#[track_caller]
pub(super) fn metrics(daemon: &Daemon) -> Metrics {
    match daemon.metrics() {
        Ok(metrics) => metrics,
        Err(error) => panic!("{}: {error}", daemon.spec().name),
    }
}

/// Runs `during` while the pods' queries are outstanding. The receiver has the replies in order of arrival.
pub(super) fn while_asking<T>(
    questions: &[(&Pod, Lookup)],
    during: impl FnOnce(&Receiver<Result<Reply, LookupFailure>>) -> T,
) -> T {
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for (pod, lookup) in questions {
            let tell = tell.clone();
            scope.spawn(move || {
                // The receiver is gone if the scenario has panicked.
                drop(tell.send(pod.look_up(lookup)));
            });
        }
        during(&told)
    })
}

/// A query for A records whose answer may be held for seconds.
pub(super) fn patient_question(name: &str) -> Lookup {
    Lookup::of(name, RecordType::A).patience(PATIENCE)
}

/// Asserts that nothing arrives for `MOMENT`.
#[track_caller]
pub(super) fn assert_nothing_comes<T: std::fmt::Debug>(receiver: &Receiver<T>) {
    let early = receiver.recv_timeout(MOMENT);
    assert!(early.is_err(), "too early: {early:?}");
}

/// The next reply.
#[track_caller]
pub(super) fn next_of(receiver: &Receiver<Result<Reply, LookupFailure>>) -> Reply {
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(reply)) => reply,
        other => panic!("no answer: {other:?}"),
    }
}

/// Polls until it is so.
#[track_caller]
pub(super) fn eventually(what: &str, is_so: impl FnMut() -> bool) -> Duration {
    within(PATIENCE, what, is_so)
}

#[track_caller]
pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}
