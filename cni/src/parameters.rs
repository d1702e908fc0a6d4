//! Parameters in the environment (CNI specification, section 2, "Parameters").

use std::sync::Arc;

use egret_shared::pod::PodKey;

use crate::error::{CniError, Code};

/// The variables, as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) container: Option<String>,
    pub(crate) netns: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) arguments: Option<String>,
}

impl Parameters {
    pub(crate) fn of_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            container: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            interface: variable("CNI_IFNAME"),
            arguments: variable("CNI_ARGS"),
        }
    }

    /// `CNI_CONTAINERID`. It becomes a file name.
    pub(crate) fn container(&self) -> Result<&str, CniError> {
        let is_start = |octet: &u8| octet.is_ascii_alphanumeric();
        let is_accepted = |octet: &u8| is_start(octet) || b"_.-".contains(octet);
        let accepted = "letters, digits, _, . and -, a letter or digit first, at most 200";
        check("CNI_CONTAINERID", self.container.as_deref(), accepted, |value| {
            value.len() <= 200
                && value.bytes().next().is_some_and(|first| is_start(&first))
                && value.bytes().all(|octet| is_accepted(&octet))
        })
    }

    /// `CNI_IFNAME`, as the kernel accepts it (`dev_valid_name` of net/core/dev.c). It becomes a file name.
    pub(crate) fn interface(&self) -> Result<&str, CniError> {
        let accepted = "1 to 15 octets without /, : and white space, not . or ..";
        check("CNI_IFNAME", self.interface.as_deref(), accepted, |value| {
            let is_bad = |letter: char| letter == '/' || letter == ':' || letter.is_whitespace();
            (1..=15).contains(&value.len()) && !value.contains(is_bad) && value != "." && value != ".."
        })
    }

    /// `CNI_NETNS`.
    pub(crate) fn netns(&self) -> Result<&str, CniError> {
        check(
            "CNI_NETNS",
            self.netns.as_deref(),
            "the path of the pod's network namespace",
            |_path| true,
        )
    }

    /// Namespace, name and UID of the pod, from `CNI_ARGS`.
    pub(crate) fn pod(&self) -> Result<(PodKey, Option<Arc<str>>), CniError> {
        let arguments = self.arguments.as_deref().unwrap_or_default();
        let value = |key: &str| {
            let pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(found, _)| *found == key).map(|(_, value)| value);
            values.next().filter(|value| !value.is_empty())
        };
        let required = |key: &str| {
            let reason =
                format_args!("CNI_ARGS has no {key}: it is for pods of Kubernetes alone").to_string();
            value(key).ok_or_else(|| CniError::new(Code::InvalidEnvironment, reason))
        };
        let (namespace, name) = (required("K8S_POD_NAMESPACE")?, required("K8S_POD_NAME")?);
        if let Some(wrong) = [namespace, name].into_iter().find(|value| value.contains('/')) {
            let reason = format_args!("CNI_ARGS: {wrong:?} is no name of a namespace or a pod").to_string();
            return Err(CniError::new(Code::InvalidEnvironment, reason));
        }
        Ok((PodKey::new(namespace, name), value("K8S_POD_UID").map(Arc::from)))
    }
}

fn check<'a>(
    name: &str,
    value: Option<&'a str>,
    accepted: &str,
    is_accepted: impl Fn(&str) -> bool,
) -> Result<&'a str, CniError> {
    let missing = || {
        CniError::new(
            Code::InvalidEnvironment,
            format_args!("{name} is not set; {accepted}"),
        )
    };
    let value = value.ok_or_else(missing)?;
    if is_accepted(value) {
        return Ok(value);
    }
    let reason = format_args!("{name} is {value:?}; accepted are {accepted}").to_string();
    Err(CniError::new(Code::InvalidEnvironment, reason))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

    use super::*;

    fn with_arguments(arguments: &str) -> Parameters {
        Parameters {
            arguments: Some(arguments.to_owned()),
            ..Parameters::default()
        }
    }

    #[test]
    fn a_pod_is_named_as_containerd_and_cri_o_name_it() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c0ffee;K8S_POD_UID=1-2";
        let (pod, uid) = with_arguments(arguments).pod().unwrap();
        assert_eq!(
            (pod.to_string().as_str(), uid.as_deref()),
            ("shop/web-0", Some("1-2"))
        );
        let (_, uid) = with_arguments("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")
            .pod()
            .unwrap();
        assert_eq!(uid, None);
    }

    #[test]
    fn what_names_no_pod_is_refused() {
        for arguments in [
            "",
            "K8S_POD_NAME=web-0",
            "K8S_POD_NAMESPACE=;K8S_POD_NAME=web-0",
            "K8S_POD_NAMESPACE=a/b;K8S_POD_NAME=c",
        ] {
            let error = with_arguments(arguments).pod().unwrap_err();
            assert_eq!(error.code, Code::InvalidEnvironment, "{arguments:?}");
        }
    }

    #[test]
    fn what_becomes_a_file_name_leads_nowhere_else() {
        for (container, interface, is_accepted) in [
            (Some("c0ffee_1.a-b"), Some("eth0"), true),
            (Some("../c"), Some("eth0"), false),
            (Some(".c"), Some("eth0"), false),
            (Some("c@d"), Some("eth0"), false),
            (None, Some("eth0"), false),
            (Some("c"), Some("a/b"), false),
            (Some("c"), Some(".."), false),
            (Some("c"), Some("0123456789abcdef"), false),
            (Some("c"), None, false),
        ] {
            let parameters = Parameters {
                container: container.map(str::to_owned),
                interface: interface.map(str::to_owned),
                ..Parameters::default()
            };
            let accepted = parameters.container().is_ok() && parameters.interface().is_ok();
            assert_eq!(accepted, is_accepted, "{container:?} {interface:?}");
        }
    }
}
