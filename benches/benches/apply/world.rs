//! A node of 110 pods in a network namespace of its own.

use std::net::IpAddr;
use std::process::Command;

use anyhow::Context as _;
use egret_benches::big::Elsewhere;
use egret_benches::ruleset::Ruleset;
use egret_benches::{START, compiler};
use egret_enforcer::backend::netfilter::bridges::BridgeNetfilter;
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::NflogSettings;
use egret_enforcer::backend::netfilter::model::unknown_pods::UnknownPods;
use egret_enforcer::backend::netfilter::{Netfilter, Settings, WriteStats};
use egret_enforcer::backend::nftables::{Nftables, Settings as NftablesSettings};
use egret_enforcer::backend::unknown_pods::Stance;
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_enforcer::node::{Locate, Location};
use egret_kernel::iptables::InterfaceName;
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
    backend: Renderer,
    pub(crate) now: Timestamp,
}

#[derive(Debug)]
enum Renderer {
    Netfilter(Box<Netfilter>),
    Nftables(Box<Nftables>),
}

impl Renderer {
    fn open(ruleset: Ruleset) -> anyhow::Result<Self> {
        let marks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).expect("the default masks do not overlap");
        let telling = Some(NflogSettings {
            group: 100,
            per_second: 10,
        });
        let deny = DenyAction::Drop;
        let is_each_alone = std::env::var_os("EGRET_BENCH_EACH_ALONE").is_some();
        Ok(match ruleset {
            Ruleset::Netfilter(flavour) => {
                let settings = Settings {
                    flavour,
                    marks,
                    deny,
                    telling,
                };
                let backend = Netfilter::open(settings, Box::new(ByAddress))?.with_preallocation();
                Self::Netfilter(Box::new(match is_each_alone {
                    true => backend.without_merged_sets(),
                    false => backend,
                }))
            }
            Ruleset::Ebpf | Ruleset::Both => anyhow::bail!("only packet filters are changed here"),
            Ruleset::Nftables => {
                let settings = NftablesSettings {
                    marks,
                    deny,
                    telling,
                    unknown: UnknownPods {
                        stance: Stance::Allow,
                        interfaces: Vec::new(),
                    },
                    accepted_marks: Vec::new(),
                    bridges: BridgeNetfilter::Off,
                };
                let backend = Nftables::open(settings, Box::new(ByAddress))?;
                Self::Nftables(Box::new(match is_each_alone {
                    true => backend.without_merged_sets(),
                    false => backend,
                }))
            }
        })
    }

    fn backend(&mut self) -> &mut dyn Backend {
        match self {
            Self::Netfilter(backend) => &mut **backend,
            Self::Nftables(backend) => &mut **backend,
        }
    }
}

impl Node {
    /// The whole cluster is known, and nothing is in the kernel.
    pub(crate) fn new(ruleset: Ruleset) -> anyhow::Result<Self> {
        Self::of(Elsewhere::TARGET.entities(), ruleset)
    }

    /// The same of another cluster.
    pub(crate) fn of(cluster: impl IntoIterator<Item = Entity>, ruleset: Ruleset) -> anyhow::Result<Self> {
        let compiler = compiler(cluster).in_sync();
        let mut backend = Renderer::open(ruleset)?;
        backend.backend().adopt(START)?;
        Ok(Self {
            compiler,
            backend,
            now: START,
        })
    }

    /// Another enforcer in its place, which finds what it wrote.
    pub(crate) fn restart(&mut self, ruleset: Ruleset) -> anyhow::Result<()> {
        self.backend = Renderer::open(ruleset)?;
        self.backend.backend().adopt(self.now)?;
        Ok(())
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
            standing = self.backend.backend().apply(batch, self.now);
        }
        anyhow::ensure!(!standing.wants_retry(), "{standing:?}");
        Ok(())
    }

    /// What programs of iptables and ipset wrote; of a table of nftables nothing is counted.
    pub(crate) fn written(&self) -> WriteStats {
        match &self.backend {
            Renderer::Netfilter(backend) => backend.written(),
            Renderer::Nftables(_) => WriteStats::default(),
        }
    }

    /// … and for those that are open.
    pub(crate) fn ask_what_is_open(&mut self) {
        self.backend.backend().search_and_end();
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
