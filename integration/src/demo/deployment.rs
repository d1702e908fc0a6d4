//! The world of the demo with its pods and names, both daemons, and the operations of the steps.

use std::{
    env,
    fmt::Display,
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Daemon, DaemonSpec, Node, Outcome, Output, Pod, PodSpec, Records, Service, World, WorldError, node,
};

use super::{DemoError, screen::Screen};

/// An address that no name stands for.
pub(super) const UNKNOWN: &str = "203.0.113.99";
/// What `blog.example.test` stands for: a name that no policy mentions.
pub(super) const BLOG: &str = "203.0.113.50";
/// What `api.example.test` stands for.
pub(super) const API: &str = "203.0.113.7";
/// How many addresses `many.example.test` has.
pub(super) const MANY: usize = 120;
/// The names below `cdn.example.test` with an address of their own, for look-ups that are always new.
const FRESH_NAMES: usize = 400;

/// A probe's attempt: shorter than the second after which the kernel repeats a SYN.
pub(super) const ATTEMPT: Duration = Duration::from_millis(700);
/// How long an address outlives its TTL here: so that nobody has to wait half a minute to see it end.
const GRACE: &str = "recordGrace: 1s\n";

/// A world with both daemons running. The daemons are dropped before the world.
#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) dnsd: Daemon,
    pub(super) enforcer: Daemon,
    pub(super) world: World,
    screen: Screen,
    is_native: bool,
}

impl Deployment {
    /// Builds the world and starts both daemons in it.
    pub(super) fn build(screen: Screen, backend: &str) -> Result<Self, DemoError> {
        screen.heading("    The world");
        let world = World::new()?
            .with(PodSpec::new("client").in_namespace("shop"))?
            .with(PodSpec::new("other").in_namespace("shop"))?
            .with(PodSpec::new("worker").in_namespace("tools"))?;
        add_upstream_names(&world);
        for port in [8010, 8011] {
            world.pod("worker").serve(port, Service::Http)?;
        }
        introduce(screen, &world);
        screen.heading("    The daemons");
        let config = world.files().join("demo.yaml");
        fs::write(&config, GRACE)?;
        let configured = |spec: DaemonSpec| spec.with(["--config".to_owned(), config.display().to_string()]);
        screen.line(&format!("{} says: {}", config.display(), GRACE.trim_end()));
        let enforcer = start(screen, &world, configured(world.enforcer(backend)))?;
        let dnsd = start(screen, &world, configured(world.dnsd()))?;
        Ok(Self {
            dnsd,
            enforcer,
            is_native: world.node().nftables_list().is_some(),
            world,
            screen,
        })
    }

    pub(super) fn screen(&self) -> Screen {
        self.screen
    }

    /// Whether the rules are a table of nftables, and not those of iptables and ipset.
    pub(super) fn is_native(&self) -> bool {
        self.is_native
    }

    pub(super) fn name(&self) -> String {
        self.world.name().to_owned()
    }

    pub(super) fn pod(&self, name: &str) -> &Pod {
        self.world.pod(name)
    }

    /// Runs a stock program in a pod and shows what it says.
    pub(super) fn run(&self, pod: &str, command: &str) -> Result<Output, WorldError> {
        let pod = self.pod(pod);
        self.screen
            .typed(&format!("{}/{}$", pod.namespace(), pod.name()), command);
        let output = pod.run(&command.split(' ').collect::<Vec<_>>())?;
        let said = [output.stdout.as_str(), output.stderr.as_str()].concat();
        self.screen.output(&said);
        Ok(output)
    }

    /// Asks for a name as programs do; the addresses, each once.
    pub(super) fn getent(&self, pod: &str, name: &str) -> Result<Vec<IpAddr>, DemoError> {
        let output = self.run(pod, &format!("getent ahosts {name}"))?;
        let mut addresses = output
            .stdout
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(str::parse)
            .collect::<Result<Vec<IpAddr>, _>>()
            .map_err(|error| DemoError::Unexpected(format!("getent said {}: {error}", output.stdout)))?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }

    /// Fetches from `host`; true when the page came.
    pub(super) fn curl(&self, pod: &str, host: impl Display) -> Result<bool, DemoError> {
        Ok(self.run(pod, &format!("curl -sS -m 1 http://{host}/"))?.success())
    }

    /// A probe's silent attempt.
    pub(super) fn connects(&self, pod: &str, address: IpAddr, port: u16) -> bool {
        self.connect(pod, address, port).is_connected()
    }

    pub(super) fn connect(&self, pod: &str, address: IpAddr, port: u16) -> Outcome {
        self.pod(pod).connect_tcp(SocketAddr::new(address, port), ATTEMPT)
    }
}

/// The examples that are applied: all YAML but the made-up cluster that is for `egret verdict` alone.
pub(super) fn examples() -> Result<Vec<PathBuf>, DemoError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/by-name");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(WorldError::file(&folder))? {
        let path = entry?.path();
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        let is_policy = !["cluster.yaml", "dnsd.yaml", "enforcer.yaml"]
            .map(Path::new)
            .contains(&path.file_name().map_or_else(|| Path::new(""), Path::new));
        if is_yaml && is_policy {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A text of the demo that is an address.
pub(super) fn address(text: &str) -> IpAddr {
    text.parse().expect("the demo's addresses are addresses")
}

fn add_upstream_names(world: &World) {
    let upstream = world.upstream();
    let set = |name: &str, addresses: &[&str]| {
        upstream.set(name, Records::addresses(addresses.iter().copied()).ttl(30));
    };
    set("api.example.test", &[API, "2001:db8::7"]);
    set("blog.example.test", &[BLOG]);
    set("cdn.example.test", &["203.0.113.20"]);
    set("*.cdn.example.test", &["203.0.113.21"]);
    set("held.cdn.example.test", &["203.0.113.30"]);
    let many = (1..=MANY).map(|last| format!("198.51.100.{last}"));
    upstream.set("many.example.test", Records::addresses(many).ttl(30));
    upstream.set(
        "brief.cdn.example.test",
        Records::addresses(["203.0.113.80"]).ttl(2),
    );
    for number in 0..FRESH_NAMES {
        let own = format!("198.18.{}.{}", number / 250, number % 250 + 1);
        upstream.set(
            &format!("{number}.cdn.example.test"),
            Records::addresses([own]).ttl(30),
        );
    }
}

fn introduce(screen: Screen, world: &World) {
    let row = |what: &str, namespace: &str, is: &str| {
        screen.line(&format!("{what:<13} {namespace:<22} {is}"));
    };
    screen.line("Network namespaces of this machine, gone at the end:");
    let dns = format!("names are answered at {}", node::DNS);
    row("the node", world.node().namespace(), &dns);
    for pod in world.pods() {
        let name = format!("{}/{}", pod.namespace(), pod.name());
        let [v4, v6] = pod.addresses();
        let is = format!("{v4} and {v6}, behind {}", pod.interface());
        row(&name, pod.netns_name(), &is);
    }
    let servers = "a DNS server, and all addresses for documentation";
    row(
        "the upstream network",
        world.upstream_network_namespace(),
        servers,
    );
}

fn start(screen: Screen, world: &World, spec: DaemonSpec) -> Result<Daemon, WorldError> {
    let words = std::iter::once(shorten(&spec.binary)).chain(spec.arguments.iter().cloned());
    let command = words.collect::<Vec<_>>().join(" ");
    screen.typed(
        "#",
        &format!("ip netns exec {} {command}", world.node().namespace()),
    );
    let mut daemon = world.launch(spec)?;
    let took = daemon.wait_until_ready()?;
    screen.line(&format!(
        "ready after {} ms, pid {}",
        took.as_millis(),
        daemon.pid()
    ));
    Ok(daemon)
}

/// The path as somebody in the current folder would type it.
pub(super) fn shorten(path: &Path) -> String {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// A shell line that runs something in the node.
pub(super) fn in_the_node(node: &Node, command: &str) -> String {
    format!("ip netns exec {} {command}", node.namespace())
}
