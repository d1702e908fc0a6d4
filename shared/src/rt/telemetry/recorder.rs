//! What `metrics` is told, as numbers: a value is added up where it is recorded, and no sample is kept.
//!
//! Names and labels come from the code, and are written as they are.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use metrics::{Counter, Gauge, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};

use super::MetricsPage;

/// All series.
#[derive(Debug)]
pub(super) struct Recorder {
    bounds: Bounds,
    /// What families mean, as it was said first.
    helps: Mutex<HashMap<String, SharedString>>,
    counters: Series<AtomicU64>,
    /// The bits of their values.
    gauges: Series<AtomicU64>,
    histograms: Series<Histogram>,
}

/// Upper bounds of histograms, in ascending order.
#[derive(Debug)]
pub(super) struct Bounds {
    usual: Arc<[f64]>,
    own: HashMap<String, Arc<[f64]>>,
}

impl Recorder {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            helps: Mutex::default(),
            counters: Series::default(),
            gauges: Series::default(),
            histograms: Series::default(),
        }
    }

    /// All of it, by name and labels.
    pub(super) fn render(&self) -> String {
        let mut page = MetricsPage::default();
        self.families(&self.counters, "counter", &mut page, |page, name, labels, it| {
            page.count(name, labels, it.load(Ordering::Acquire));
        });
        self.families(&self.gauges, "gauge", &mut page, |page, name, labels, it| {
            page.series(name, labels, f64::from_bits(it.load(Ordering::Acquire)));
        });
        self.families(
            &self.histograms,
            "histogram",
            &mut page,
            |page, name, labels, it| {
                page.histogram(
                    name,
                    labels,
                    it.rows(),
                    f64::from_bits(it.sum.load(Ordering::Acquire)),
                );
            },
        );
        page.text()
    }

    fn families<T>(
        &self,
        series: &Series<T>,
        kind: &str,
        page: &mut MetricsPage,
        write: impl Fn(&mut MetricsPage, &str, &[(&str, &str)], &T),
    ) {
        for (name, family) in series.families() {
            match self.help(&name) {
                Some(help) => page.family(&name, kind, &help),
                None => page.kind(&name, kind),
            }
            for (key, it) in family {
                let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
                write(page, &name, &labels, &it);
            }
        }
    }

    fn help(&self, name: &str) -> Option<SharedString> {
        self.helps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    fn describe(&self, name: &KeyName, help: SharedString) {
        self.helps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.as_str().to_owned())
            .or_insert(help);
    }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, name: KeyName, _unit: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_gauge(&self, name: KeyName, _unit: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_histogram(&self, name: KeyName, _unit: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.counters.get(key, AtomicU64::default))
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauges.get(key, AtomicU64::default))
    }

    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> metrics::Histogram {
        let new = || Histogram::new(self.bounds.of(key.name()));
        metrics::Histogram::from_arc(self.histograms.get(key, new))
    }
}

impl Bounds {
    pub(super) fn new(usual: &[f64], own: &[(&str, &[f64])]) -> Self {
        let own = own
            .iter()
            .map(|(name, bounds)| ((*name).to_owned(), (*bounds).into()));
        Self {
            usual: usual.into(),
            own: own.collect(),
        }
    }

    fn of(&self, name: &str) -> Arc<[f64]> {
        Arc::clone(self.own.get(name).unwrap_or(&self.usual))
    }
}

/// The series of one kind. Who counts often keeps what it was given, so the lock is for those who do not.
#[derive(Debug)]
struct Series<T>(RwLock<HashMap<Key, Arc<T>>>);

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Series<T> {
    fn get(&self, key: &Key, new: impl FnOnce() -> T) -> Arc<T> {
        let known = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            // A key may borrow from who asked.
            Arc::clone(all.entry(key.to_retained()).or_insert_with(|| Arc::new(new())))
        })
    }

    fn families(&self) -> BTreeMap<String, BTreeMap<Key, Arc<T>>> {
        let mut families: BTreeMap<String, BTreeMap<_, _>> = BTreeMap::new();
        for (key, it) in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            let family = families.entry(key.name().to_owned()).or_default();
            family.insert(key.clone(), Arc::clone(it));
        }
        families
    }
}

/// How many values were in which range, and the bits of what they add up to.
#[derive(Debug)]
struct Histogram {
    bounds: Arc<[f64]>,
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: Arc<[f64]>) -> Self {
        Self {
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            bounds,
            sum: AtomicU64::default(),
        }
    }

    /// The bounds with how many values are not above, the last of them without a bound.
    fn rows(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let mut below = 0;
        self.counts.iter().enumerate().map(move |(place, count)| {
            below += count.load(Ordering::Acquire);
            (self.bounds.get(place).copied(), below)
        })
    }
}

impl HistogramFn for Histogram {
    /// What is no number is above every bound.
    fn record(&self, value: f64) {
        let place = self.bounds.iter().position(|bound| value <= *bound);
        self.counts[place.unwrap_or(self.bounds.len())].fetch_add(1, Ordering::Release);
        metrics::GaugeFn::increment(&self.sum, value);
    }
}

#[cfg(test)]
mod tests;
