//! A node of 110 pods in a network namespace of its own.

use std::net::IpAddr;
use std::process::Command;

use anyhow::Context as _;
use egret_benches::big::Elsewhere;
use egret_benches::{START, compiler};
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_enforcer::node::{Locate, Location};
use egret_kernel::iptables::{Flavour, InterfaceName};
use egret_policies::compiler::{Compiler, Event, InSync};
use egret_policies::model::cluster::Entity;
use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Leaves this process alone with the namespace that it has from then on, and with a lock of legacy iptables that nobody else has.
pub(crate) fn enter() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("a network namespace cannot be made; run as root")?;
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)?;
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    anyhow::ensure!(status.success(), "lo does not come up");
    Ok(())
}

/// The compiler and the backend, as the engine has them.
#[derive(Debug)]
pub(crate) struct Node {
    compiler: Compiler<InSync>,
    pub(crate) backend: Netfilter,
    pub(crate) now: Timestamp,
}

impl Node {
    /// The whole cluster is known, and nothing is in the kernel.
    pub(crate) fn new(flavour: Flavour) -> anyhow::Result<Self> {
        Self::of(Elsewhere::TARGET.entities(), flavour)
    }

    /// The same of another cluster.
    pub(crate) fn of(cluster: impl IntoIterator<Item = Entity>, flavour: Flavour) -> anyhow::Result<Self> {
        let compiler = compiler(cluster).in_sync();
        let settings = Settings {
            flavour,
            marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).expect("the default masks do not overlap"),
            deny: DenyAction::Drop,
            telling: Some(NflogSettings {
                group: 100,
                per_second: 10,
            }),
        };
        let mut backend = Netfilter::open(settings, Box::new(ByAddress))?.with_preallocation();
        if std::env::var_os("EGRET_BENCH_EACH_ALONE").is_some() {
            backend = backend.without_merged_sets();
        }
        backend.adopt(START)?;
        Ok(Self {
            compiler,
            backend,
            now: START,
        })
    }

    /// What the compiler makes of an event.
    pub(crate) fn compile(&mut self, event: Event) -> Vec<Batch> {
        self.compiler.handle(event, self.now);
        self.batches()
    }

    /// What there is to be done.
    pub(crate) fn batches(&mut self) -> Vec<Batch> {
        std::iter::from_fn(|| self.compiler.poll_batch(self.now)).collect()
    }

    /// As the engine does it.
    pub(crate) fn apply(&mut self, batches: &[Batch]) -> anyhow::Result<()> {
        self.put_in_force(batches)?;
        self.ask_what_is_open();
        self.tell();
        Ok(())
    }

    /// There is no dnsd; what would be told to one is taken all the same, for it is kept until then.
    fn tell(&mut self) {
        self.compiler.poll_interests();
        self.compiler.poll_cluster_dns();
    }

    /// For new connections.
    pub(crate) fn put_in_force(&mut self, batches: &[Batch]) -> anyhow::Result<()> {
        let mut standing = SyncStatus::default();
        for batch in batches {
            standing = self.backend.apply(batch, self.now);
        }
        anyhow::ensure!(!standing.wants_retry(), "{standing:?}");
        Ok(())
    }

    /// … and for those that are open.
    pub(crate) fn ask_what_is_open(&mut self) {
        self.backend.search_and_end();
    }
}

/// Each pod has an interface, called by the end of its address.
#[derive(Debug)]
struct ByAddress;

impl Locate for ByAddress {
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        let IpAddr::V4(address) = addresses[0] else {
            return Err("its first address is of IPv6".to_owned());
        };
        let [.., high, low] = address.octets();
        let name = InterfaceName::new(format!("veth{high}x{low}")).map_err(|error| error.to_string())?;
        Ok(vec![Location::own(name)])
    }
}
