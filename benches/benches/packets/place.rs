//! A world of its own for each way to enforce, so that rounds of all of them can be had in turn.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_integration::{Daemon, PodSpec, World};
use egret_kernel::iptables::Flavour;
use serde_json::Value;

use crate::cluster::{self, FIRST, FORBIDDEN, LAST, PORT, SERVER, STAND_INS, Size};
use crate::load::Path;

/// Objects in a file.
const IN_A_FILE: usize = 500;
/// For the largest cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who enforces, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforcing {
    /// Nobody: no table, no rule, no tracking of connections.
    Nothing,
    /// One rule that accepts what is of an open connection.
    OneRule(Flavour),
    /// The enforcer wrote its rules.
    Egret(Flavour),
}

/// A node with two clients, their server and 107 interfaces more.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: Path,
    pub(crate) objects: Vec<Value>,
    // Dropped last: the sockets above are in its namespaces.
    pub(crate) world: World,
}

impl Place {
    pub(crate) fn new(size: Size) -> anyhow::Result<Self> {
        let pod = |(namespace, name): (&str, &str)| PodSpec::new(name).in_namespace(namespace);
        let world = World::new()?
            .with(pod(FIRST))?
            .with(pod(LAST))?
            .with(pod(SERVER))?;
        add_stand_ins(&world)?;
        let clients = [world.pod(FIRST.1), world.pod(LAST.1)];
        let path = Path::new(clients, world.pod(SERVER.1))?;
        let objects = size.objects(world.pods());
        Ok(Self { path, objects, world })
    }

    pub(crate) fn enforced_by(size: Size, enforcing: Enforcing) -> anyhow::Result<Self> {
        let place = Self::new(size)?;
        match enforcing {
            Enforcing::Nothing => {}
            Enforcing::OneRule(flavour) => place.write_one_rule(flavour)?,
            Enforcing::Egret(flavour) => {
                // What it wrote stays when it is gone.
                let enforcer = place.start_enforcer(flavour)?;
                place.wait_until_enforced().with_context(|| enforcer.log())?;
            }
        }
        Ok(place)
    }

    /// What every stateful firewall begins with.
    fn write_one_rule(&self, flavour: Flavour) -> anyhow::Result<()> {
        let program = format!("iptables-{}", flavour.name());
        let rule = "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT";
        let argv: Vec<&str> = std::iter::once(program.as_str()).chain(rule.split(' ')).collect();
        Ok(self.world.node().run_well(&argv)?)
    }

    /// The enforcer of this build, once its rules are in force.
    pub(crate) fn start_enforcer(&self, flavour: Flavour) -> anyhow::Result<Daemon> {
        self.write_manifests()?;
        let spec = self.world.enforcer("netfilter").in_folder(release_folder()?);
        let spec = spec.with(["--resync", "0s", "--iptables", flavour.name()]);
        let mut daemon = self.world.launch(spec)?;
        let start = Instant::now();
        loop {
            match daemon.wait_until_ready() {
                Ok(_) => return Ok(daemon),
                Err(_) if start.elapsed() < PATIENCE && daemon.is_running() => {}
                Err(error) => return Err(error).with_context(|| daemon.log()),
            }
        }
    }

    /// A port that no policy allows is closed, and the server's is open.
    pub(crate) fn is_enforced(&self) -> anyhow::Result<bool> {
        Ok(self.path.is_closed(FORBIDDEN)? && !self.path.is_closed(PORT)?)
    }

    /// It is ready when it knows what to do.
    fn wait_until_enforced(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.is_enforced()? {
            ensure!(
                start.elapsed() < PATIENCE,
                "a port that no policy allows is open, or the server's is not"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// JSON is YAML. The world's own file is replaced: it says less of the same pods.
    fn write_manifests(&self) -> anyhow::Result<()> {
        for (number, objects) in self.objects.chunks(IN_A_FILE).enumerate() {
            let texts = objects.iter().map(Value::to_string);
            let text = texts.collect::<Vec<_>>().join("\n---\n");
            let name = if number == 0 {
                "world.yaml".to_owned()
            } else {
                format!("{number}.yaml")
            };
            self.world.manifests().write(&name, &text)?;
        }
        Ok(())
    }

    /// Forgets all connections, so that a round does not pay for those of the round before.
    pub(crate) fn forget_flows(&self) -> anyhow::Result<()> {
        // It says on stderr how many there were, and fails where none are tracked.
        self.world.node().run(&["conntrack", "-F"])?;
        Ok(())
    }
}

/// Both ends of a cable are interfaces of the node: all that rules know of a pod.
fn add_stand_ins(world: &World) -> anyhow::Result<()> {
    let mut lines = String::new();
    for number in (0..STAND_INS).step_by(2) {
        let other = number + 1;
        writeln!(lines, "link add s{number} type veth peer name s{other}")?;
    }
    for number in 0..STAND_INS {
        let address = cluster::stand_in_address(number);
        writeln!(lines, "link set s{number} up")?;
        writeln!(lines, "route add {address}/32 dev s{number} scope link")?;
    }
    let file = world.files().join("stand-ins");
    fs::write(&file, lines)?;
    let file = file.display().to_string();
    Ok(world.node().run_well(&["ip", "-batch", &file])?)
}

/// Where the daemons of this build are: a bench runs in `<profile>/deps`.
fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}
