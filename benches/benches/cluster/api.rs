//! A client of the API server, in the network namespace of the world's node.

use std::fs::File;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use egret_benches::big;
use egret_integration::{Kubernetes, World};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

/// Requests that are sent at once.
const AT_ONCE: usize = 16;

#[derive(Debug)]
pub(crate) struct Api {
    namespace: String,
    config: Kubeconfig,
}

impl Api {
    pub(crate) fn new(world: &World, kubernetes: &Kubernetes) -> anyhow::Result<Self> {
        Ok(Self {
            namespace: world.node().namespace().to_owned(),
            config: Kubeconfig::read_from(kubernetes.kubeconfig())?,
        })
    }

    /// Runs work with a client, on a thread in the node's network namespace.
    pub(crate) fn with<T, W, F>(&self, work: W) -> anyhow::Result<T>
    where
        T: Send,
        W: FnOnce(Client) -> F + Send,
        F: Future<Output = anyhow::Result<T>>,
    {
        let run = || {
            let netns = File::open(format!("/run/netns/{}", self.namespace))?;
            nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET)?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let config =
                    Config::from_custom_kubeconfig(self.config.clone(), &KubeConfigOptions::default())
                        .await?;
                work(Client::try_from(config)?).await
            })
        };
        std::thread::scope(|scope| scope.spawn(run).join())
            .map_err(|_panic| anyhow::anyhow!("the client panicked"))?
    }

    /// Stores objects, status included; returns how many.
    pub(crate) fn store(
        &self,
        objects: impl Iterator<Item = anyhow::Result<Value>> + Send,
    ) -> anyhow::Result<usize> {
        let mut objects: Vec<Value> = objects.collect::<anyhow::Result<_>>()?;
        // Namespaces and nodes stand before what is in them.
        objects.sort_by_key(|object| match object["kind"].as_str() {
            Some("Namespace") => 0,
            Some("Node") => 1,
            _ => 2,
        });
        let number = objects.len();
        self.with(|client| async move {
            let client = Arc::new(client);
            let mut rest = objects.as_slice();
            while let Some(first) = rest.first() {
                let same = rest
                    .iter()
                    .take_while(|object| (object["kind"] == "Namespace") == (first["kind"] == "Namespace"))
                    .count();
                let (now, later) = rest.split_at(same);
                stream::iter(now.iter().map(|object| store(Arc::clone(&client), object)))
                    .buffer_unordered(AT_ONCE)
                    .try_collect::<Vec<()>>()
                    .await?;
                rest = later;
            }
            Ok(number)
        })
    }

    /// Changes a label of one pod after another that is on another node; returns how many.
    pub(crate) fn churn(&self, span: Duration, per_second: u32) -> anyhow::Result<u32> {
        self.with(|client| async move {
            let begun = Instant::now();
            let pods = (big::LOCAL..1_000).cycle();
            let mut made = 0;
            for number in pods {
                let due = Duration::from_secs(1) * made / per_second;
                if due >= span {
                    break;
                }
                tokio::time::sleep_until((begun + due).into()).await;
                let of_namespace = number / big::NAMESPACES_HERE;
                let text = big::pod(number, number % big::NAMESPACES_HERE, of_namespace);
                let pod: Value = serde_saphyr::from_str(&text)?;
                let change = json!({"metadata": {"labels": {"version": format!("v{}", made % 4)}}});
                patch(&client, &path(&pod)?, &change).await?;
                made += 1;
            }
            Ok(made)
        })
    }
}

async fn store(client: Arc<Client>, object: &Value) -> anyhow::Result<()> {
    let request = http::Request::post(collection(object)?)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(object)?)?;
    client
        .request_text(request)
        .await
        .with_context(|| object.to_string())?;
    match object.get("status") {
        Some(status) => {
            patch(
                &client,
                &format!("{}/status", path(object)?),
                &json!({"status": status}),
            )
            .await
        }
        None => Ok(()),
    }
}

async fn patch(client: &Client, path: &str, change: &Value) -> anyhow::Result<()> {
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(serde_json::to_vec(change)?)?;
    client
        .request_text(request)
        .await
        .with_context(|| path.to_owned())?;
    Ok(())
}

pub(crate) fn path(object: &Value) -> anyhow::Result<String> {
    let name = object["metadata"]["name"]
        .as_str()
        .context("an object has a name")?;
    Ok(format!("{}/{name}", collection(object)?))
}

fn collection(object: &Value) -> anyhow::Result<String> {
    let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    let (version, kind) = version.zip(kind).context("an object has a version and a kind")?;
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = match kind.to_lowercase() {
        kind if kind.ends_with("policy") => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/{root}/{version}/{plural}"),
    })
}
