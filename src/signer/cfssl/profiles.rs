//! The known properties of the profiles of a server, from its descriptions and from trials. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::CaProfile;

/// The response to `info`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct InfoResponse {
    pub(super) certificate: String,
    /// `null` for a profile without usages.
    pub(super) usages: Option<Vec<String>>,
    #[serde(default)]
    pub(super) expiry: String,
}

/// A server's description of a place.
pub(super) enum Description<T> {
    As(T),
    /// A `multirootca` without that section.
    NoLabel,
    /// A `multirootca` or a `serve` with remote signers; other servers do not report this.
    NoProfile,
}

impl<T> Description<T> {
    pub(super) fn known(&self) -> Option<&T> {
        match self {
            Description::As(known) => Some(known),
            Description::NoLabel | Description::NoProfile => None,
        }
    }
}

impl InfoResponse {
    pub(super) fn usages(&self) -> &[String] {
        self.usages.as_deref().unwrap_or_default()
    }
}

/// Result of a request that cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// It would have been signed, except for the missing CSR.
    Signs,
    /// The profile does not exist.
    NoProfile,
    /// The profile has a key, and the request was not signed with it.
    WantsKey,
    /// The request was signed, and the profile has no key.
    HasNoKey,
    /// This key or this address is not accepted.
    KeptOut,
    /// Another response.
    Unclear,
}

pub(super) struct ProfileFacts {
    pub(super) info: InfoResponse,
    pub(super) trial: Trial,
    /// The profile is the default one as configured, or differs from an unknown one.
    pub(super) exists: bool,
}

/// Returns the places to ask about: each place, and for each named profile an unknown profile of the same CA.
pub(super) fn places_to_describe(places: &BTreeSet<CaProfile>) -> BTreeSet<CaProfile> {
    let named = places.iter().filter(|place| place.profile.is_some());
    let fallbacks = named.map(CaProfile::fallback);
    fallbacks.chain(places.iter().cloned()).collect()
}

/// Returns whether the server describes a named profile exactly like an unknown one.
fn resembles_fallback(
    place: &CaProfile,
    descriptions: &BTreeMap<CaProfile, Description<InfoResponse>>,
) -> bool {
    let info = |place: &CaProfile| descriptions.get(place).and_then(Description::known);
    place.profile.is_some() && info(place).is_some() && info(place) == info(&place.fallback())
}

/// Returns the places to try: those that the server describes, and as a comparison the unknown profile of those that
/// resemble it.
pub(super) fn places_to_try(
    places: &BTreeSet<CaProfile>,
    descriptions: &BTreeMap<CaProfile, Description<InfoResponse>>,
) -> BTreeSet<CaProfile> {
    let described = |place: &&CaProfile| {
        descriptions
            .get(place)
            .and_then(Description::known)
            .is_some()
    };
    places
        .iter()
        .filter(described)
        .flat_map(|place| {
            let comparison = resembles_fallback(place, descriptions).then(|| place.fallback());
            [Some(place.clone()), comparison].into_iter().flatten()
        })
        .collect()
}

/// Determines what is known about each place. A named profile exists if the server describes it differently from an
/// unknown one, or treats requests for it differently.
pub(super) fn conclude(
    places: &BTreeSet<CaProfile>,
    descriptions: &BTreeMap<CaProfile, Description<InfoResponse>>,
    trials: &BTreeMap<CaProfile, Trial>,
) -> BTreeMap<CaProfile, Description<ProfileFacts>> {
    let facts = |place: &CaProfile, info: &InfoResponse| {
        let trial = trials.get(place).copied().unwrap_or(Trial::Unclear);
        ProfileFacts {
            info: info.clone(),
            trial,
            exists: !resembles_fallback(place, descriptions)
                || trials.get(&place.fallback()) != Some(&trial),
        }
    };
    places
        .iter()
        .filter_map(|place| {
            let known = match descriptions.get(place)? {
                Description::As(info) => Description::As(facts(place, info)),
                Description::NoLabel => Description::NoLabel,
                Description::NoProfile => Description::NoProfile,
            };
            Some((place.clone(), known))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(expiry: &str) -> Description<InfoResponse> {
        Description::As(InfoResponse {
            certificate: "ca".to_owned(),
            usages: None,
            expiry: expiry.to_owned(),
        })
    }

    #[test]
    fn named_profile_exists_if_description_or_trial_differs_from_unknown_one() {
        use Trial::{NoProfile, Signs, WantsKey};
        let place = |profile: Option<&str>| CaProfile {
            label: "ca".to_owned(),
            profile: profile.map(str::to_owned),
        };
        for (profile, own, fallback, trial, fallback_trial, tried, exists) in [
            (Some("node"), "1h", "1h", Signs, Some(Signs), 2, false),
            (Some("node"), "1h", "2h", Signs, None, 1, true),
            (Some("node"), "1h", "1h", WantsKey, Some(Signs), 2, true),
            (
                Some("node"),
                "1h",
                "1h",
                NoProfile,
                Some(NoProfile),
                2,
                false,
            ),
            (None, "1h", "1h", Signs, None, 1, true),
        ] {
            let place = place(profile);
            let places = BTreeSet::from([place.clone()]);
            let descriptions = BTreeMap::from([
                (place.fallback(), info(fallback)),
                (place.clone(), info(own)),
            ]);
            assert_eq!(places_to_try(&places, &descriptions).len(), tried);
            let trials = fallback_trial.map(|trial| (place.fallback(), trial));
            let trials = trials.into_iter().chain([(place.clone(), trial)]).collect();
            let concluded = conclude(&places, &descriptions, &trials);
            let facts = concluded[&place].known().unwrap();
            assert_eq!((facts.trial, facts.exists), (trial, exists), "{profile:?}");
        }
    }

    #[test]
    fn tries_no_place_that_server_does_not_have() {
        let place = CaProfile {
            label: "etcd_ca".to_owned(),
            profile: None,
        };
        let places = BTreeSet::from([place.clone()]);
        let descriptions = BTreeMap::from([(place.clone(), Description::NoLabel)]);
        assert!(places_to_try(&places, &descriptions).is_empty());
        let concluded = conclude(&places, &descriptions, &BTreeMap::new());
        assert!(matches!(concluded[&place], Description::NoLabel));
    }
}
