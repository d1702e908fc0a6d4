//! Pods, and workloads whose template stands for one.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use super::{network, port};
use crate::api::{Field, Notes, Object, Refused, labels};
use crate::diagnostic::Code;
use crate::model::Labels;
use crate::model::cluster::{NamedPort, Pod, PodLife};

/// A pod.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> Pod {
    let root = Field::root(&object.body);
    let status = root.get("status");
    let started = status
        .as_ref()
        .and_then(|status| optional_text(status, "startTime", notes));
    Pod {
        uid: mirrored(&root, notes).or_else(|| object.metadata.uid.clone()),
        addresses: addresses(status.as_ref(), notes),
        life: life(status.as_ref(), notes),
        started: started.or_else(|| object.metadata.created.clone()),
        ..of_spec(
            object,
            object.metadata.labels.clone(),
            root.get("spec").as_ref(),
            notes,
        )
    }
}

/// The one pod of a workload's template, named as the workload.
pub(super) fn lower_template(object: &Object, path: &[&str], notes: &mut Notes) -> Pod {
    let root = Field::root(&object.body);
    let template = path.iter().try_fold(root, |field, key| field.get(key));
    let metadata = template.as_ref().and_then(|template| template.get("metadata"));
    let written = metadata.and_then(|metadata| metadata.get("labels"));
    let labels = labels(written.as_ref(), notes).unwrap_or_default();
    let spec = template.and_then(|template| template.get("spec"));
    of_spec(object, labels, spec.as_ref(), notes)
}

fn of_spec(object: &Object, labels: Labels, spec: Option<&Field<'_>>, notes: &mut Notes) -> Pod {
    let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
    let host_network = spec.and_then(|spec| spec.get("hostNetwork"));
    Pod {
        key: PodKey::new(namespace, &object.metadata.name),
        uid: None,
        labels,
        node: spec.and_then(|spec| optional_text(spec, "nodeName", notes)),
        addresses: Vec::new(),
        host_network: host_network.is_some_and(|field| field.boolean(notes).unwrap_or_default()),
        life: PodLife::Live,
        started: None,
        ports: spec.map(|spec| ports(spec, notes)).unwrap_or_default(),
    }
}

/// The UID by which the runtime and cgroups know a static pod. The kubelet writes it into the mirror of the pod, whose own UID is
/// the API server's (`ConfigMirrorAnnotationKey` of k8s.io/kubernetes/pkg/kubelet/types).
fn mirrored(pod: &Field<'_>, notes: &mut Notes) -> Option<Arc<str>> {
    let annotations = pod.get("metadata")?.get("annotations")?;
    optional_text(&annotations, "kubernetes.io/config.mirror", notes)
}

fn addresses(status: Option<&Field<'_>>, notes: &mut Notes) -> Vec<IpAddr> {
    let Some(status) = status else {
        return Vec::new();
    };
    let listed = list(status, "podIPs", notes);
    let one = status.get("podIP").into_iter();
    network::addresses(one.chain(listed.iter().filter_map(|item| item.get("ip"))), notes)
}

/// A pod that is done keeps its address in its status, although the address may be another pod's.
fn life(status: Option<&Field<'_>>, notes: &mut Notes) -> PodLife {
    let phase = status.and_then(|status| optional_text(status, "phase", notes));
    match phase.as_deref() {
        Some("Succeeded" | "Failed") => PodLife::Terminal,
        Some(_) | None => PodLife::Live,
    }
}

/// Named ports of containers, and of init containers that run as long as the pod (sidecars).
fn ports(spec: &Field<'_>, notes: &mut Notes) -> Vec<NamedPort> {
    let mut containers = list(spec, "containers", notes);
    let init_containers = list(spec, "initContainers", notes);
    containers.extend(
        init_containers
            .into_iter()
            .filter(|container| is_sidecar(container, notes)),
    );
    let mut ports: Vec<NamedPort> = Vec::new();
    for container in containers {
        for port in list(&container, "ports", notes) {
            ports.extend(named_port(&port, notes).unwrap_or_default());
        }
    }
    ports.sort();
    ports.dedup();
    ports
}

fn is_sidecar(container: &Field<'_>, notes: &mut Notes) -> bool {
    optional_text(container, "restartPolicy", notes).as_deref() == Some("Always")
}

fn named_port(port: &Field<'_>, notes: &mut Notes) -> Result<Option<NamedPort>, Refused> {
    let Some(name) = optional_text(port, "name", notes) else {
        return Ok(None);
    };
    let transport = port
        .get("protocol")
        .map_or(Ok(Some(Transport::Tcp)), |field| port::transport(&field, notes))?;
    let number = port
        .get("containerPort")
        .and_then(|field| port::port_number(&field));
    match (transport, number) {
        (Some(transport), Some(number)) => Ok(Some(NamedPort {
            name,
            transport,
            number,
        })),
        (None, _) | (_, None) => {
            let accepted = "containerPort from 1 to 65535, and TCP, UDP or SCTP";
            Err(port.refuse(Code::InvalidObjectPort, accepted, notes))
        }
    }
}

/// The items of a list; none where there is none or it cannot be read, which is noted.
pub(super) fn list<'a>(object: &Field<'a>, key: &str, notes: &mut Notes) -> Vec<Field<'a>> {
    let items = object.get(key).map(|list| list.items(notes));
    items.and_then(Result::ok).unwrap_or_default()
}

/// A text; none where there is none or it cannot be read, which is noted.
pub(super) fn optional_text(object: &Field<'_>, key: &str, notes: &mut Notes) -> Option<Arc<str>> {
    let field = object.get(key)?;
    match field.text(notes) {
        Ok("") | Err(Refused) => None,
        Ok(text) => Some(text.into()),
    }
}
