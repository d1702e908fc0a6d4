//! Denied packets of several kernels' ways to tell of them: those of the backend `both`.

use std::os::fd::BorrowedFd;

use super::channel::{Channel, ReadPackets, Source};
use crate::backend::netfilter::denials::Denial;

/// Several sources.
#[derive(Debug)]
pub struct Merged(pub Vec<Box<dyn Source>>);

impl Source for Merged {
    fn listen(&self) -> Result<Box<dyn Channel>, String> {
        let channels = self.0.iter().map(|source| source.listen());
        Ok(Box::new(Channels(channels.collect::<Result<_, _>>()?)))
    }
}

#[derive(Debug)]
struct Channels(Vec<Box<dyn Channel>>);

impl Channel for Channels {
    fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().flat_map(|channel| channel.as_fds()).collect()
    }

    fn read(&mut self) -> Result<ReadPackets, String> {
        let mut all = ReadPackets::default();
        for channel in &mut self.0 {
            let read = channel.read()?;
            all.denied.extend(read.denied);
            all.foreign += read.foreign;
            all.lost += read.lost;
        }
        Ok(all)
    }

    fn suppressed(&self, denial: &Denial) -> Option<u64> {
        self.0
            .iter()
            .filter_map(|channel| channel.suppressed(denial))
            .reduce(u64::saturating_add)
    }

    fn has(&self, denial: &Denial) -> bool {
        self.0.iter().any(|channel| channel.has(denial))
    }

    fn end_window(&mut self) {
        for channel in &mut self.0 {
            channel.end_window();
        }
    }
}
