//! Parts of a big cluster for the commands of `egret`, and connections to ask about.

use super::{Elsewhere, NAMESPACES_HERE, PODS_HERE, admin, key_of, namespace, pod, policy};

/// Some namespaces with their pods and policies.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    namespaces: usize,
    pods: usize,
    policies: usize,
    admin_policies: usize,
}

impl Part {
    /// 1,000 manifests.
    pub const PROBED: Self = Self {
        namespaces: 40,
        pods: 620,
        policies: 330,
        admin_policies: 10,
    };

    /// 1,000 pods and 200 policies.
    pub const LISTED: Self = Self {
        namespaces: 20,
        pods: 1_000,
        policies: 190,
        admin_policies: 10,
    };

    /// The objects as manifests, one by one.
    pub fn manifests(self) -> impl Iterator<Item = String> {
        let namespaces = self.namespaces;
        (0..namespaces)
            .map(namespace)
            .chain((0..self.pods).map(move |number| pod(number, number % namespaces, number / namespaces)))
            .chain((0..self.policies).map(move |number| policy(number % namespaces, number / namespaces)))
            .chain((0..self.admin_policies).map(|number| admin::policy(number * 10 + 1)))
    }

    /// What each pod was told for the name that probes ask for.
    #[must_use]
    pub fn records(self) -> String {
        records(self.namespaces, self.pods)
    }

    /// So many connections, as `egret verdict` reads them.
    #[must_use]
    pub fn probes(self, count: usize) -> String {
        probes(count, self.namespaces, self.pods)
    }
}

impl Elsewhere {
    /// As [`Part::records`].
    #[must_use]
    pub fn records(self) -> String {
        records(NAMESPACES_HERE, PODS_HERE)
    }

    /// As [`Part::probes`], between pods of the namespaces that node `here` has pods of.
    #[must_use]
    pub fn probes(self, count: usize) -> String {
        probes(count, NAMESPACES_HERE, PODS_HERE)
    }
}

const NAME: &str = "img.cdn4.example.test";

fn records(namespaces: usize, pods: usize) -> String {
    let line = |number: usize| {
        let pod = key_of(number, number % namespaces, number / namespaces);
        format!("{{\"pod\": {pod:?}, \"name\": {NAME:?}, \"address\": \"203.0.114.7\", \"ttl\": 300}}\n")
    };
    (0..pods).map(line).collect()
}

/// From every pod in turn, to pods of its own and of other namespaces, to addresses and names.
fn probes(count: usize, namespaces: usize, pods: usize) -> String {
    let key = |number: usize| key_of(number, number % namespaces, number / namespaces);
    let line = |probe: usize| {
        let from = key(probe % pods);
        let other = (probe * 7 + probe / pods) % pods;
        let to = match probe % 5 {
            0 | 1 => format!("{:?}", key(other)),
            2 => format!(
                "{:?}",
                key(probe % pods % namespaces + other / namespaces % (pods / namespaces) * namespaces)
            ),
            3 => format!("{{\"ip\": \"198.18.{}.{}\"}}", probe % 256, probe / 256 % 256),
            _ => format!("{{\"name\": {NAME:?}}}"),
        };
        let port = [80, 443, 8080, 8050, 9090][probe % 5];
        format!(
            "{{\"id\": \"{probe}\", \"from\": {from:?}, \"to\": {to}, \"protocol\": \"TCP\", \"port\": {port}}}\n"
        )
    };
    (0..count).map(line).collect()
}
