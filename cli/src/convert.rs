//! `egret convert`: AdminNetworkPolicies and the BaselineAdminNetworkPolicy (v1alpha1) as ClusterNetworkPolicies
//! (v1alpha2), and the form of 2016 as NetworkPolicies (v1), that mean the same, which is proved before anything is
//! printed.
//!
//! ```text
//!  texts ──▶ documents with comments ──▶ policy ──▶ plan ──▶ documents ──▶ text
//!    │                                                                      │
//!    └──▶ policies before ──────────────▶ prove ◀──── policies after ◀──────┘
//! ```

use std::borrow::Cow;
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde_json::json;

use egret_shared::escape;

use crate::manifests::objects::WrittenObjects;
use crate::manifests::text::ManifestTexts;
use crate::manifests::unreadable::UnreadableManifests;
use crate::options::ManifestOptions;
use crate::output;
use crate::reach::load::LoadedCluster;

pub mod document;
mod scan;
pub mod parse;
pub mod print;
pub mod original;
pub mod policy;
pub mod form_of_2016;
mod port;
mod known_fields;
pub mod plan;
pub mod conversion;
pub mod prove;

use conversion::{Conversion, convert_all};
use document::Value;
use original::{ObjectKind, OriginalObject, find};
use prove::{Differences, Proof, prove};

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    from: ManifestOptions,
    /// Print the documents that need no conversion, too, as they are written
    #[arg(long)]
    all: bool,
    /// How to print the policies
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Yaml)]
    output: Output,
}

const AFTER_HELP: &str = "\
  egret convert --manifests policies/ cluster/ > converted.yaml
  kubectl get anp,banp,cnp,netpol,ns,nodes,pods -A -o yaml | egret convert --manifests -

Nothing is printed unless everything can be carried over and no verdict changes: of the pods in the
manifests, and of pods made up for every selector.

Exit status:
  0  what is printed means the same, or there is nothing to convert
  2  bad usage, input that cannot be read, or something that cannot be carried over";

/// How to print policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A document each, with the comments
    Yaml,
    /// One List, without comments
    Json,
}

/// Why nothing is printed.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The options do not go together.
    #[error("--all prints documents as they are written, so it goes with -o yaml only")]
    AllAsJson,
    /// The manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] UnreadableManifests),
    /// Something has no form in v1alpha2.
    #[error("nothing is converted, for {}\n{}", count(.0.len()), .0.join("\n"))]
    Refused(Vec<String>),
    /// What came out means something else.
    #[error("nothing is converted: {}", list_differences(.0))]
    Differs(Differences),
    /// The result cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

fn count(refused: usize) -> String {
    match refused {
        1 => "one reason".to_owned(),
        several => format!("{several} reasons"),
    }
}

fn list_differences(differences: &Differences) -> String {
    let lines: Vec<String> = differences.first.iter().map(ToString::to_string).collect();
    let more = match differences.count - lines.len() {
        0 => String::new(),
        more => format!("\nand {more} more"),
    };
    format!(
        "{} of the compared connections would have another verdict\n{}{more}",
        differences.count,
        lines.join("\n")
    )
}

impl Arguments {
    /// Converts: policies go to `out`, all that should be known besides to `remarks`.
    ///
    /// # Errors
    /// Why nothing is printed.
    pub fn run(&self, out: &mut impl Write, remarks: &mut impl Write) -> Result<(), ConvertError> {
        if self.all && self.output == Output::Json {
            return Err(ConvertError::AllAsJson);
        }
        let texts = ManifestTexts::read(&self.from.manifests)?;
        let loaded = LoadedCluster::of_texts(&texts, &self.from)?;
        loaded.write_remarks(remarks)?;
        let found = find(&texts);
        let reading = self.from.unknown_fields();
        let objects = WrittenObjects::of(&texts);
        let carried = convert_all(&found, &objects, &loaded.manifests.policies, reading)
            .map_err(ConvertError::Refused)?;
        let proved = prove(
            &loaded.manifests,
            loaded.cluster.dns(),
            &loaded.manifests.policies,
            &carried.policies,
        )
        .map_err(ConvertError::Differs)?;
        for note in &carried.notes {
            writeln!(remarks, "{note}")?;
        }
        write_summary(&carried, proved, remarks)?;
        match self.output {
            Output::Yaml => write!(out, "{}", self.yaml(&found, &carried))?,
            Output::Json => write_json(&carried, out)?,
        }
        out.flush()?;
        Ok(())
    }

    /// In the order in which they were read.
    fn yaml(&self, found: &[OriginalObject], carried: &Conversion) -> String {
        let mut documents: Vec<Cow<'_, str>> = Vec::new();
        for one in found {
            match &one.origin {
                ObjectKind::Policy { reference, .. } => {
                    documents.extend(carried.of(reference).map(|new| Cow::from(new.text.as_str())))
                }
                ObjectKind::Other { text } if self.all => documents.push(shown(text)),
                ObjectKind::Other { .. } => {}
            }
        }
        documents.join("---\n")
    }
}

/// A document as it was written; with escapes that mean the same to a reader of YAML where a terminal would obey it.
fn shown(text: &str) -> Cow<'_, str> {
    let value = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).ok();
    match escape::json(text) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        Cow::Owned(escaped) => match (value(text), value(&escaped)) {
            // Outside of double quotes nothing can be escaped: as JSON, without comments.
            (Some(before), after) if after.as_ref() != Some(&before) => {
                Cow::Owned(format!("{}\n", escape::json(&format!("{before:#}"))))
            }
            (_, _) => Cow::Owned(escaped),
        },
    }
}

fn write_json(carried: &Conversion, out: &mut impl Write) -> io::Result<()> {
    let items: Vec<_> = carried.all().map(|new| Value::json(&new.root)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    writeln!(out, "{}", escape::json(&serde_json::to_string_pretty(&list)?))
}

fn write_summary(carried: &Conversion, proved: Proof, out: &mut impl Write) -> io::Result<()> {
    let [cluster, of_2016] = [false, true].map(|is_of_2016| carried.counts(is_of_2016));
    if (cluster.0, of_2016.0) == (0, 0) {
        return writeln!(
            out,
            "there is no AdminNetworkPolicy, no BaselineAdminNetworkPolicy and nothing in the form of 2016: nothing to convert"
        );
    }
    if let (old @ 1.., new) = cluster {
        writeln!(out, "converted: {old} to {new} of kind ClusterNetworkPolicy")?;
    }
    if let (old @ 1.., new) = of_2016 {
        writeln!(
            out,
            "converted: {old} in the form of 2016 to {new} of kinds Namespace and NetworkPolicy (networking.k8s.io/v1)"
        )?;
    }
    let Proof {
        connections,
        pods,
        made_up,
    } = proved;
    let of_pods = match pods {
        0 => format!(
            "of {} only, as there are no pods in the manifests",
            output::count(made_up, "made-up pod", "made-up pods")
        ),
        1 => format!("of the pod in the manifests and {}", more(made_up)),
        pods => format!("of the {pods} pods in the manifests and {}", more(made_up)),
    };
    writeln!(
        out,
        "proved: {connections} connections have the same verdict before and after, {of_pods}"
    )
}

fn more(made_up: usize) -> String {
    output::count(made_up, "made-up one", "made-up ones")
}
