//! The objects of the cluster, in the form in which the API server takes them.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::ensure;
use egret_benches::big::{self, Elsewhere};
use egret_integration::{Kubernetes, World, kubernetes, node};
use serde_json::{Value, json};

use crate::whole;

/// What a node other than the world's is called.
pub(crate) fn other_node(number: usize) -> String {
    format!("other-{number}")
}

/// The kinds that the API server does not have by itself.
pub(crate) fn define(world: &World, kubernetes: &Kubernetes) -> anyhow::Result<()> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    kubernetes.apply(world, &ours).map_err(whole)?;
    for definition in kubernetes::network_policy_api().map_err(whole)? {
        let definition = definition.display().to_string();
        kubernetes
            .kubectl(world, &["apply", "--server-side", "-f", &definition])
            .map_err(whole)?;
    }
    Ok(())
}

/// A veth pair with a route for each local pod, as a CNI plugin leaves it.
pub(crate) fn make_links(world: &World) -> anyhow::Result<()> {
    let mut lines = String::new();
    for number in 0..big::LOCAL {
        let address = big::address_of(number);
        writeln!(lines, "link add vethp{number} type veth peer name peer{number}")?;
        writeln!(
            lines,
            "link set vethp{number} up\nlink set peer{number} up\nroute add {address} dev vethp{number}"
        )?;
    }
    let file = world.files().join("links");
    std::fs::write(&file, lines)?;
    world
        .node()
        .run_well(&["ip", "-batch", &file.display().to_string()])?;
    Ok(())
}

/// All of them, in an order in which they can be stored.
pub(crate) fn all() -> impl Iterator<Item = anyhow::Result<Value>> {
    let texts = Elsewhere::TARGET.manifests().filter(|text| is_storable(text));
    texts.map(|text| {
        let mut object: Value = serde_saphyr::from_str(&text)?;
        ensure!(object.is_object(), "no object: {text}");
        adapt(&mut object);
        Ok(object)
    })
}

/// The API server has its own Service already, and the world its node; the gateway is a pod of a namespace that is not there.
fn is_storable(text: &str) -> bool {
    !text.contains("name: kubernetes,") && !text.contains("{name: here") && text != big::GATEWAY
}

fn adapt(object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    match kind.as_str() {
        "Node" | "NodeAddressReport" => rename(&mut object["metadata"]["name"]),
        "Pod" => {
            rename(&mut object["spec"]["nodeName"]);
            // The API server says both itself.
            for field in ["uid", "creationTimestamp"] {
                object["metadata"]
                    .as_object_mut()
                    .map(|metadata| metadata.remove(field));
            }
            object["status"]["podIP"] = object["status"]["podIPs"][0]["ip"].clone();
        }
        // The API server chooses addresses in its own range.
        "Service" => {
            object["spec"]
                .as_object_mut()
                .map(|spec| spec.remove("clusterIPs"));
        }
        _ => {}
    }
}

fn rename(name: &mut Value) {
    let renamed = match name.as_str() {
        Some("here") => node::NAME.to_owned(),
        Some(other) => other.replace("node-", "other-"),
        None => return,
    };
    *name = json!(renamed);
}
