//! The same story on the other backend: the pod is its cgroup, and a refused connection fails at once.

use std::{
    fs,
    path::{Path, PathBuf},
};

use egret_integration::{Outcome, Records, World};

use super::deployment::{Deployment, Setup, TestResult, only_names};

pub(super) fn names_hold_by_cgroup_in_the_ebpf_backend(world: &mut World) -> TestResult {
    let pins = Pins::of(world);
    if world.cgroup_root().is_none() {
        world.put_pods_in_cgroups()?;
    }
    let root = world.cgroup_root().ok_or("its pods are in no cgroups")?;
    let root = root.display().to_string();
    let setting = Setup::of(only_names(&["api.example.test"]))
        .and_pod("other")
        .backend("ebpf")
        .enforcer(&["--bpf-pins", pins.text(), "--cgroup-root", &root]);
    let deployment = setting.deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment
        .upstream()
        .set("other.example.test", Records::addresses(["203.0.113.8"]));
    assert_tells_its_limits(&deployment)?;
    assert_not_permitted(&deployment, "client", "203.0.113.7");
    deployment.ask("client", "api.example.test");
    deployment.ask("client", "other.example.test");
    let mut open = deployment.assert_reaches("client", "203.0.113.7");
    assert_not_permitted(&deployment, "client", "203.0.113.8");
    assert_not_permitted(&deployment, "other", "203.0.113.7");
    assert!(open.is_alive());

    let binary = deployment.enforcer.spec().binary.display().to_string();
    let Deployment {
        world,
        dnsd,
        enforcer,
    } = deployment;
    drop((dnsd, enforcer));
    assert!(pins.0.exists(), "exit removes nothing");
    let state = world.state().display().to_string();
    let clean = [
        &binary,
        "cleanup",
        "--bpf-pins",
        pins.text(),
        "--state",
        &state,
        "--state-objects",
        "",
    ];
    let cleanup = world.node().run(&clean)?;
    assert!(cleanup.success() && !pins.0.exists(), "{cleanup:?}");
    Ok(())
}

/// What the backend does not do is among the metrics, as in its dump.
fn assert_tells_its_limits(deployment: &Deployment<'_>) -> TestResult {
    let (_, dump) = deployment.enforcer.get("/rules")?;
    let metrics = deployment.enforcer.metrics()?;
    let limits: Vec<&str> = dump
        .lines()
        .filter_map(|line| line.strip_prefix("not done: "))
        .collect();
    assert!(!limits.is_empty(), "{dump}");
    for limit in limits {
        let labels = [("backend", "ebpf"), ("limit", limit)];
        assert_eq!(
            metrics.sum("egret_enforcer_backend_limits", &labels),
            1.0,
            "{limit}"
        );
    }
    Ok(())
}

#[track_caller]
fn assert_not_permitted(deployment: &Deployment<'_>, pod: &str, address: &str) {
    let outcome = deployment.reach(pod, address);
    assert!(
        matches!(outcome, Outcome::NotPermitted),
        "{pod} to {address}: {outcome:?}"
    );
}

/// The world's own pins. The file system of BPF is the machine's, not the namespace's: what a story that fails leaves
/// there is removed here.
struct Pins(PathBuf);

impl Pins {
    fn of(world: &World) -> Self {
        Self(Path::new("/sys/fs/bpf").join(world.name()))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("names of worlds are ASCII")
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // Usually the story itself has removed them.
        if self.0.exists()
            && let Err(error) = fs::remove_dir_all(&self.0)
        {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
