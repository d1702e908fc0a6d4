//! The thread of the engine.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use egret_enforcer::backend::Backend;
use egret_enforcer::engine::{Engine, Input, Setup};
use egret_enforcer::link;
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::task;
use tokio::sync::mpsc;

/// The socket on which dnsds connect.
pub(super) struct Link {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
    pub(super) instance: DnsdInstance,
    pub(super) engine: mpsc::Sender<Input>,
}

/// Starts the engine on a thread of its own, because it blocks in system calls. It returns the backend when it stops.
///
/// The link runs on the same thread: an observation waits for the engine in any case, and to hand it and its answer from
/// thread to thread costs about as much as the engine's own work for it. The engine is a task like the link, because a
/// future that the runtime itself blocks on polls the kernel once more for each wake-up.
pub(super) fn start(
    setup: Setup,
    inputs: mpsc::Receiver<Input>,
    link: Link,
) -> anyhow::Result<JoinHandle<Box<dyn Backend>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(link.listener)?
    };
    let engine = Engine::new(setup);
    let run = async move {
        drop(task::spawn(
            "link",
            link::serve(listener, link.path, link.instance, link.engine),
        ));
        task::spawn("engine", engine.run(inputs)).await
    };
    let thread = std::thread::Builder::new().name("engine".to_owned());
    Ok(thread.spawn(move || match runtime.block_on(run) {
        Ok(backend) => backend,
        Err(died) => std::panic::resume_unwind(died.into_panic()),
    })?)
}
