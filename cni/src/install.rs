//! `install` and `uninstall`: the program goes into the folder of plugins, and an entry into the configuration that the
//! container runtime uses.
//!
//! Each step replaces, renames or removes one file, and each state between two steps works: the program is there before a
//! configuration names it, and a configuration is complete or as it was. What is interrupted is completed by the next run.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chain::{self, InvalidChain, PLUGIN};

/// Why it could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: InvalidChain },
    #[error(
        "{0} has no network configuration (*.conf, *.conflist, *.json): run this again when the cluster's network plugin has written it"
    )]
    NoConfig(PathBuf),
}

/// What a single configuration is called while a list stands for it. Runtimes do not read this ending.
const REPLACED: &str = "replaced-by-egret-cni";

/// Puts the plugin behind the others in the configuration that the runtime uses. Returns its path.
pub(crate) fn install(
    program: &Path,
    conf_dir: &Path,
    bin_dir: &Path,
    entry: &Value,
) -> Result<PathBuf, InstallError> {
    let config = used_config(conf_dir)?.ok_or_else(|| InstallError::NoConfig(conf_dir.to_owned()))?;
    let text = read(&config)?;
    let invalid = |reason| InstallError::Config {
        path: config.clone(),
        reason,
    };
    let is_list = is_list(&config);
    let new = if is_list {
        chain::with_plugin(&text, entry)
    } else {
        chain::list_of(&text, entry)
    };
    let new = new.map_err(invalid)?;
    let list = config.with_extension("conflist");
    if !is_list && read(&list).is_ok_and(|other| !is_conversion(&list, &other)) {
        let reason = "another list has the name that the list of its plugins would get";
        return Err(of_file(&list)(io::Error::new(
            io::ErrorKind::AlreadyExists,
            reason,
        )));
    }
    // Before the configuration names it.
    install_program(program, bin_dir)?;
    if !is_list || new != text {
        replace(&list, new.as_bytes(), mode(&config)?)?;
    }
    if !is_list {
        // The name of a list sorts behind that of the single configuration, which counts until now.
        rename(&config, &replaced(&config))?;
    }
    Ok(list)
}

/// Takes the plugin out of all configurations, and removes the program. Returns what changed.
pub(crate) fn uninstall(conf_dir: &Path, bin_dir: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let mut changed = Vec::new();
    for path in files(conf_dir)? {
        let Some(single) = path
            .to_str()
            .and_then(|path| path.strip_suffix(&format!(".{REPLACED}")))
        else {
            continue;
        };
        // From now on it counts again.
        rename(&path, Path::new(single))?;
        changed.push(single.into());
    }
    for path in files(conf_dir)?.into_iter().filter(|path| is_list(path)) {
        let text = read(&path)?;
        if !chain::has_plugin(&text) {
            continue;
        }
        if is_conversion(&path, &text) {
            remove(&path)?;
        } else {
            let invalid = |reason| InstallError::Config {
                path: path.clone(),
                reason,
            };
            let new = chain::without_plugin(&text).map_err(invalid)?;
            replace(&path, new.as_bytes(), mode(&path)?)?;
        }
        changed.push(path);
    }
    let program = bin_dir.join(PLUGIN);
    if program.exists() {
        remove(&program)?;
        changed.push(program);
    }
    Ok(changed)
}

/// Whether a list was made of a single configuration that is beside it: it holds that one and the plugin.
fn is_conversion(list: &Path, text: &str) -> bool {
    let plugins = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|config| config.get("plugins").cloned());
    let first = plugins.as_ref().and_then(|plugins| plugins.get(0));
    ["conf", "json"].into_iter().any(|ending| {
        let single = fs::read(list.with_extension(ending)).ok();
        let single: Option<Value> = single.and_then(|single| serde_json::from_slice(&single).ok());
        single.is_some() && single.as_ref() == first
    })
}

/// The first configuration by name that can be read, as the kubelet's runtimes choose it.
fn used_config(conf_dir: &Path) -> Result<Option<PathBuf>, InstallError> {
    let is_config = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ["conf", "conflist", "json"].contains(&ending))
    };
    let is_readable = |path: &PathBuf| {
        let octets = fs::read(path).ok();
        octets.is_some_and(|octets| serde_json::from_slice::<Value>(&octets).is_ok())
    };
    Ok(files(conf_dir)?.into_iter().filter(is_config).find(is_readable))
}

fn is_list(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "conflist")
}

fn replaced(single: &Path) -> PathBuf {
    PathBuf::from(format!("{}.{REPLACED}", single.display()))
}

/// Files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(of_file(folder))?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn install_program(program: &Path, bin_dir: &Path) -> Result<(), InstallError> {
    let octets = fs::read(program).map_err(of_file(program))?;
    let installed = bin_dir.join(PLUGIN);
    if fs::read(&installed).is_ok_and(|found| found == octets) {
        return Ok(());
    }
    replace(&installed, &octets, 0o755)
}

/// Replaces a file at once: it is complete or as it was, also after the machine stopped.
fn replace(path: &Path, octets: &[u8], mode: u32) -> Result<(), InstallError> {
    let unfinished = PathBuf::from(format!("{}.tmp", path.display()));
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(octets)?;
        file.sync_all()
    };
    write().map_err(of_file(&unfinished))?;
    rename(&unfinished, path)
}

fn rename(from: &Path, to: &Path) -> Result<(), InstallError> {
    fs::rename(from, to).map_err(of_file(from))
}

fn remove(path: &Path) -> Result<(), InstallError> {
    fs::remove_file(path).map_err(of_file(path))
}

fn read(path: &Path) -> Result<String, InstallError> {
    fs::read_to_string(path).map_err(of_file(path))
}

fn mode(path: &Path) -> Result<u32, InstallError> {
    let found = fs::metadata(path).map_err(of_file(path))?;
    Ok(found.permissions().mode() & 0o777)
}

fn of_file(path: &Path) -> impl Fn(io::Error) -> InstallError {
    let path = path.to_owned();
    move |error| InstallError::File {
        path: path.clone(),
        error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    const LIST: &str =
        "{\n \"cniVersion\": \"1.0.0\", \"name\": \"pods\",\n \"plugins\": [ {\"type\": \"ptp\"} ]\n}\n";
    const SINGLE: &str =
        "{ \"cniVersion\": \"0.4.0\", \"name\": \"pods\", \"type\": \"bridge\", \"bridge\": \"cni0\" }\n";

    /// A node's folders of configurations and programs.
    struct Folders(tempfile::TempDir);

    impl Folders {
        fn with(configs: &[(&str, &str)]) -> Self {
            let folders = Self(tempfile::tempdir().unwrap());
            fs::create_dir(folders.conf()).unwrap();
            fs::create_dir(folders.bin()).unwrap();
            fs::write(folders.program(), "program").unwrap();
            for (name, text) in configs {
                fs::write(folders.conf().join(name), text).unwrap();
            }
            folders
        }

        fn conf(&self) -> PathBuf {
            self.0.path().join("net.d")
        }

        fn bin(&self) -> PathBuf {
            self.0.path().join("bin")
        }

        fn program(&self) -> PathBuf {
            self.0.path().join("program")
        }

        fn install(&self) -> Result<PathBuf, InstallError> {
            install(
                &self.program(),
                &self.conf(),
                &self.bin(),
                &json!({"type": PLUGIN}),
            )
        }

        fn uninstall(&self) -> Vec<PathBuf> {
            uninstall(&self.conf(), &self.bin()).unwrap()
        }

        /// All files of both folders.
        fn content(&self) -> BTreeMap<String, String> {
            let paths = [self.conf(), self.bin()]
                .into_iter()
                .flat_map(|folder| files(&folder).unwrap());
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            paths
                .map(|path| (name(&path), fs::read_to_string(&path).unwrap()))
                .collect()
        }

        /// The types of the plugins that the runtime runs.
        fn chain(&self) -> Vec<String> {
            let used = used_config(&self.conf()).unwrap().unwrap();
            let config: Value = serde_json::from_str(&read(&used).unwrap()).unwrap();
            let plugins = config.get("plugins").cloned().unwrap_or_else(|| json!([config]));
            let types = plugins
                .as_array()
                .unwrap()
                .iter()
                .map(|plugin| plugin["type"].as_str().unwrap().to_owned());
            types.collect()
        }
    }

    #[test]
    fn it_is_in_the_configuration_that_counts_and_gone_without_a_trace() {
        for (configs, first) in [
            (&[("10-pods.conflist", LIST)][..], "ptp"),
            (&[("10-pods.conf", SINGLE)], "bridge"),
            (&[("10-pods.json", SINGLE)], "bridge"),
            (
                &[
                    ("10-pods.conflist", LIST),
                    ("20-other.conf", SINGLE),
                    ("README", "x"),
                ],
                "ptp",
            ),
            (&[("05-broken.conflist", "{"), ("10-pods.conf", SINGLE)], "bridge"),
        ] {
            let folders = Folders::with(configs);
            let before = folders.content();
            for _again in 0..2 {
                folders.install().unwrap();
                assert_eq!(folders.chain(), [first, PLUGIN], "{configs:?}");
                assert_eq!(folders.content()[PLUGIN], "program");
            }
            let installed = folders.content();
            folders.install().unwrap();
            assert_eq!(folders.content(), installed);
            folders.uninstall();
            assert_eq!(folders.content(), before);
            assert!(folders.uninstall().is_empty());
        }
    }

    #[test]
    fn what_is_interrupted_works_and_is_completed_or_taken_back() {
        let list = chain::list_of(SINGLE, &json!({"type": PLUGIN})).unwrap();
        let chained = chain::with_plugin(LIST, &json!({"type": PLUGIN})).unwrap();
        for (configs, original) in [
            (
                &[("10-pods.conf", SINGLE), ("10-pods.conflist.tmp", "{")][..],
                ("10-pods.conf", SINGLE),
            ),
            (
                &[("10-pods.conf", SINGLE), ("10-pods.conflist", &list)],
                ("10-pods.conf", SINGLE),
            ),
            (
                &[("10-pods.conflist", LIST), ("10-pods.conflist.tmp", "{")],
                ("10-pods.conflist", LIST),
            ),
            (&[("10-pods.conflist", &chained)], ("10-pods.conflist", LIST)),
        ] {
            let first = if original.1 == SINGLE { "bridge" } else { "ptp" };
            for is_completed in [true, false] {
                let folders = Folders::with(configs);
                assert_eq!(folders.chain()[0], first);
                if is_completed {
                    folders.install().unwrap();
                    assert_eq!(folders.chain(), [first, PLUGIN]);
                }
                folders.uninstall();
                let mut left = folders.content();
                // No runtime reads it, and the next install replaces it.
                left.retain(|name, _| !name.ends_with(".tmp"));
                assert_eq!(
                    left,
                    BTreeMap::from([(original.0.to_owned(), original.1.to_owned())]),
                    "{configs:?}"
                );
            }
        }
    }

    #[test]
    fn nothing_changes_where_it_cannot_be() {
        let old = SINGLE.replace("0.4.0", "0.2.0");
        for (configs, expected) in [
            (&[][..], "has no network configuration"),
            (&[("10-pods.conf", old.as_str())], "its cniVersion is \"0.2.0\""),
            (&[("10-pods.conflist", "{}")], "it has no plugins"),
            (
                &[("10-pods.conf", SINGLE), ("10-pods.conflist", LIST)],
                "another list has the name",
            ),
        ] {
            let folders = Folders::with(configs);
            let before = folders.content();
            let error = folders.install().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(folders.content(), before);
        }
    }
}
