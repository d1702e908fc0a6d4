//! Ctrl-C and SIGTERM: the story ends after the step under way, and everything is taken down.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use egret_shared::rt::shutdown::{SignalRequest, Signals};

/// Whether the demo shall end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Listens from now on; whoever asks a second time does not want to wait, and the next world sweeps what is left.
    pub(crate) fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut signals = {
            let _entered = runtime.enter();
            Signals::listen()?
        };
        let stop = Self::default();
        let told = stop.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                runtime.block_on(asked(&mut signals));
                told.ask();
                runtime.block_on(asked(&mut signals));
                std::process::exit(130);
            })?;
        Ok(stop)
    }

    pub(crate) fn was_asked(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait(&self) {
        let asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_while(asked, |asked| !*asked));
    }

    fn ask(&self) {
        println!("\n      Stopping …");
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

async fn asked(signals: &mut Signals) {
    while signals.next().await != SignalRequest::Stop {}
}
