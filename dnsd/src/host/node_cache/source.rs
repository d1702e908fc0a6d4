//! The source of the Corefile: the template and the `kube-dns` ConfigMap, both in mounted folders that may change.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::KubeDns;
use super::kube_dns::InvalidConfigMap;
use super::template::{Inputs, render, service_variable};
use crate::config::node_cache::Flags;

/// The folder of the `kube-dns` ConfigMap, if no flag names one and it exists.
const DEFAULT_KUBE_DNS: &str = "/etc/kube-dns";

/// Makes the Corefile.
#[derive(Clone, Debug)]
pub struct Source {
    flags: Flags,
    kube_dns: Option<PathBuf>,
    cluster_dns: Option<IpAddr>,
    /// The last valid ConfigMap.
    taken: KubeDns,
    /// The Corefile that was written last.
    written: Option<String>,
}

/// Why no Corefile can be made. The previous one stays.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The ConfigMap.
    #[error("the kube-dns ConfigMap cannot be taken, what it said before stays in force: {0}")]
    ConfigMap(#[from] InvalidConfigMap),
    /// The template.
    #[error("the template {}: {source}", path.display())]
    Template {
        /// Its file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The Corefile.
    #[error("the Corefile {} cannot be written: {source}", path.display())]
    Corefile {
        /// Its file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl Source {
    /// The source that the flags name; `environment` has the address of the upstream Service.
    #[must_use]
    pub fn new(flags: &Flags, environment: impl Fn(&str) -> Option<String>) -> Self {
        let default = || Some(PathBuf::from(DEFAULT_KUBE_DNS)).filter(|path| path.exists());
        let variable = service_variable(&flags.upstream_service);
        let cluster_dns = environment(&variable).and_then(|text| text.parse().ok());
        if cluster_dns.is_none() {
            tracing::warn!(
                service = flags.upstream_service,
                variable,
                "the address of the upstream Service is not known: __PILLAR__CLUSTER__DNS__ stands for nothing"
            );
        }
        Self {
            kube_dns: flags.kube_dns.clone().or_else(default),
            flags: flags.clone(),
            cluster_dns,
            taken: KubeDns::default(),
            written: None,
        }
    }

    /// Reads template and ConfigMap, and writes the Corefile if it has changed; returns whether it has. If one of both
    /// is invalid, the error is reported and the other one is used.
    pub fn refresh(&mut self, mut report: impl FnMut(SourceError)) -> bool {
        match self.kube_dns.as_deref().map(KubeDns::read) {
            Some(Ok(found)) => self.taken = found,
            Some(Err(error)) => report(error.into()),
            None => {}
        }
        match self.make() {
            Ok(text) if self.written.as_ref() == Some(&text) => false,
            Ok(text) => match write(&self.flags.corefile, &text) {
                Ok(()) => {
                    self.written = Some(text);
                    true
                }
                Err(source) => {
                    report(SourceError::Corefile {
                        path: self.flags.corefile.clone(),
                        source,
                    });
                    false
                }
            },
            Err(error) => {
                report(error);
                false
            }
        }
    }

    /// The Corefile that was written last.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.written.as_deref()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.flags.corefile
    }

    fn make(&self) -> Result<String, SourceError> {
        let path = &self.flags.base_corefile;
        let template = std::fs::read_to_string(path);
        let template = template.map_err(|source| SourceError::Template {
            path: path.clone(),
            source,
        })?;
        Ok(render(
            &template,
            &Inputs {
                local_ips: &self.flags.local_ips,
                dns_port: self.flags.dns_port,
                cluster_dns: self.cluster_dns,
                prometheus_address: &self.flags.prometheus_address,
                kube_dns: &self.taken,
            },
        ))
    }
}

/// Replaces the file atomically, if the folder allows it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let replaced = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    // A file that is a mount point can be written, but not replaced.
    replaced.or_else(|_not_replaced| std::fs::write(path, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node_cache::flags::{Invocation, read};

    struct World {
        folder: PathBuf,
        source: Source,
    }

    impl World {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("egret-source-{name}-{}", std::process::id()));
            std::fs::create_dir_all(folder.join("kube-dns")).unwrap();
            let arguments = format!(
                "-localip 169.254.20.10 -basecorefile {0}/base -conf {0}/Corefile -kubednscm {0}/kube-dns -upstreamsvc up",
                folder.display()
            );
            let Invocation::Serve(flags) = read(arguments.split(' ').map(str::to_owned)).unwrap() else {
                panic!("{arguments}");
            };
            let environment = |name: &str| (name == "UP_SERVICE_HOST").then(|| "10.96.0.9".to_owned());
            let source = Source::new(&flags, environment);
            Self { folder, source }
        }

        fn put(&self, file: &str, text: &str) {
            std::fs::write(self.folder.join(file), text).unwrap();
        }

        /// Whether the Corefile has changed, and the errors.
        fn refresh(&mut self) -> (bool, Vec<String>) {
            let mut errors = Vec::new();
            let changed = self.source.refresh(|error| errors.push(error.to_string()));
            (changed, errors)
        }

        fn corefile(&self) -> String {
            std::fs::read_to_string(self.folder.join("Corefile")).unwrap()
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    #[test]
    fn the_corefile_follows_template_and_config_map() {
        let mut world = World::new("follows");
        world.put("base", "forward . __PILLAR__CLUSTER__DNS__\n");
        assert_eq!(world.refresh(), (true, vec![]));
        assert_eq!(world.corefile(), "forward . 10.96.0.9\n");
        assert_eq!(world.refresh(), (false, vec![]), "nothing changed");
        world.put("kube-dns/stubDomains", "{\"corp\": [\"10.1.0.1\"]}");
        assert_eq!(world.refresh(), (true, vec![]));
        assert!(world.corefile().contains("corp:53 {"), "{}", world.corefile());
        world.put("base", "other\n");
        assert_eq!(world.refresh(), (true, vec![]));
        assert!(
            world.corefile().starts_with("other\n\ncorp:53 {"),
            "{}",
            world.corefile()
        );
    }

    #[test]
    fn an_invalid_source_leaves_the_corefile_in_force() {
        let mut world = World::new("keeps");
        let (changed, errors) = world.refresh();
        assert!(!changed && errors[0].contains("the template"), "{errors:?}");
        world.put("base", "a\n");
        world.put("kube-dns/stubDomains", "{\"corp\": [\"10.1.0.1\"]}");
        assert!(world.refresh().0);
        let before = world.corefile();
        world.put("kube-dns/stubDomains", "{\"corp\": [\"nowhere\"]}");
        let (changed, errors) = world.refresh();
        assert!(
            !changed && errors[0].contains("\"nowhere\" cannot be asked"),
            "{errors:?}"
        );
        assert_eq!(world.corefile(), before);
        world.put("base", "b\n");
        assert!(world.refresh().0, "the template is taken all the same");
        assert!(
            world.corefile().starts_with("b\n\ncorp:53"),
            "with the stub domains of before: {}",
            world.corefile()
        );
    }
}
