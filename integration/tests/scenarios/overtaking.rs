//! Rules take their time to be written: programs do it, and others may hold what they need. What a pod is told does not wait for
//! that, as long as the change is about others.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use egret_integration::{PodSpec, Records, World};

use super::stage::{Stage, Told, eventually, only_names, patient_question};

/// The pod `other` may reach nobody.
const OTHER_ALONE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: other-alone
spec:
  tier: Admin
  priority: 5
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {app: other}}
  egress:
  - name: nothing
    action: Deny
    to:
    - networks: [0.0.0.0/0, "::/0"]
"#;

pub(super) fn a_name_is_usable_before_a_long_change_of_other_rules_ends(world: &mut World) -> Told {
    let programs = SlowPrograms::beside(world.files())?;
    for pod in ["client", "other"] {
        world.add(PodSpec::new(pod))?;
    }
    world
        .manifests()
        .write("policy.yaml", &only_names(&["api.example.test"]))?;
    let slow = world
        .enforcer("netfilter")
        .with_variable("PATH", &programs.path());
    let enforcer = world.start(slow)?;
    let dnsd = world.start(world.dnsd().with(["--stall-deadline", "4s"]))?;
    let stage = Stage {
        world,
        dnsd,
        enforcer,
    };
    stage.wait_until_joined();
    stage
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    stage.ask("other", "api.example.test");
    let mut of_the_other = stage.assert_reaches("other", "203.0.113.7");
    programs.hold()?;
    stage.world.manifests().write("closed.yaml", OTHER_ALONE)?;
    eventually("the rules are being written", || programs.is_running());
    stage.ask_as("client", &patient_question("api.example.test"));
    stage.assert_reaches("client", "203.0.113.7");
    assert!(
        programs.is_running() && of_the_other.is_alive(),
        "the change has not ended"
    );
    programs.release()?;
    eventually("the change is in force", || !of_the_other.is_alive());
    stage.assert_refused("other", "203.0.113.7");
    stage.assert_reaches("client", "203.0.113.7");
    Ok(())
}

/// The programs of iptables, which wait before they change anything for as long as they are held.
struct SlowPrograms {
    folder: PathBuf,
}

impl SlowPrograms {
    fn beside(files: &Path) -> io::Result<Self> {
        let folder = files.join("slow-programs");
        fs::create_dir(&folder)?;
        let slow = Self { folder };
        for family in ["iptables", "ip6tables"] {
            for flavour in ["nft", "legacy"] {
                slow.write(&format!("{family}-{flavour}-restore"))?;
            }
        }
        Ok(slow)
    }

    /// The folder goes with the world, and then nothing is held.
    fn write(&self, program: &str) -> io::Result<()> {
        let folder = self.folder.display();
        let text = format!(
            "#!/bin/sh\n[ -e {folder}/held ] && : > {folder}/running\n\
             while [ -e {folder}/held ]; do sleep 0.02; done\nexec /usr/sbin/{program} \"$@\"\n"
        );
        let path = self.folder.join(program);
        fs::write(&path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    }

    /// What is searched for programs.
    fn path(&self) -> String {
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.display())
    }

    fn hold(&self) -> io::Result<()> {
        fs::write(self.folder.join("held"), "")
    }

    /// Whether one has begun and waits.
    fn is_running(&self) -> bool {
        let is_there = |name: &str| self.folder.join(name).exists();
        is_there("held") && is_there("running")
    }

    fn release(&self) -> io::Result<()> {
        fs::remove_file(self.folder.join("held"))
    }
}
