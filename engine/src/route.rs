//! Which way a GET goes at first. Pure.

use s3engine_s3::{Policy, Reason};

/// What this engine knows of fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FabricState {
    /// Configured off.
    Off,
    /// Looked for, and not found.
    Missing,
    /// Found or asked for, and not started.
    InitFailed,
    /// Ready.
    Ready,
}

/// The way a GET goes at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// By the fabric.
    Rdma,
    /// By HTTP, because that was wanted.
    HttpIntended(Reason),
    /// By HTTP, because RDMA was wanted and is not possible.
    HttpFallback(Reason),
    /// Not at all.
    Refused(Reason),
}

/// Decides for a GET of `len` bytes.
pub(crate) fn route(policy: Policy, fabric: FabricState, len: u64, threshold: u64) -> Route {
    match (policy, fabric) {
        (Policy::Http, _) => Route::HttpIntended(Reason::Policy),
        (Policy::RequireRdma, FabricState::Ready) => Route::Rdma,
        (Policy::RequireRdma, FabricState::InitFailed) => Route::Refused(Reason::FabricInitFailed),
        (Policy::RequireRdma, _) => Route::Refused(Reason::NoFabric),
        (Policy::PreferRdma, FabricState::Off) => Route::HttpIntended(Reason::Policy),
        (Policy::PreferRdma, _) if len < threshold => Route::HttpIntended(Reason::BelowThreshold),
        (Policy::PreferRdma, FabricState::Missing) => Route::HttpFallback(Reason::NoFabric),
        (Policy::PreferRdma, FabricState::InitFailed) => {
            Route::HttpFallback(Reason::FabricInitFailed)
        }
        (Policy::PreferRdma, FabricState::Ready) => Route::Rdma,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [FabricState; 4] = [
        FabricState::Off,
        FabricState::Missing,
        FabricState::InitFailed,
        FabricState::Ready,
    ];

    #[test]
    fn policy_http_is_always_an_intent() {
        for state in STATES {
            assert_eq!(
                route(Policy::Http, state, 1 << 30, 0),
                Route::HttpIntended(Reason::Policy)
            );
        }
    }

    #[test]
    fn required_rdma_never_goes_by_http_whatever_the_size() {
        for state in STATES {
            for len in [1, 1 << 30] {
                let way = route(Policy::RequireRdma, state, len, 1 << 20);
                assert!(
                    matches!(way, Route::Rdma | Route::Refused(_)),
                    "{state:?} {way:?}"
                );
            }
        }
    }

    #[test]
    fn a_missing_fabric_is_a_fallback_and_one_that_is_off_an_intent() {
        let way = |state| route(Policy::PreferRdma, state, 1 << 30, 1 << 20);
        assert_eq!(
            way(FabricState::Missing),
            Route::HttpFallback(Reason::NoFabric)
        );
        assert_eq!(
            way(FabricState::InitFailed),
            Route::HttpFallback(Reason::FabricInitFailed)
        );
        assert_eq!(way(FabricState::Off), Route::HttpIntended(Reason::Policy));
    }

    #[test]
    fn small_objects_go_by_http_unless_rdma_is_required() {
        let below = route(Policy::PreferRdma, FabricState::Ready, 99, 100);
        assert_eq!(below, Route::HttpIntended(Reason::BelowThreshold));
        assert_eq!(
            route(Policy::PreferRdma, FabricState::Ready, 100, 100),
            Route::Rdma
        );
        assert_eq!(
            route(Policy::RequireRdma, FabricState::Ready, 99, 100),
            Route::Rdma
        );
    }
}
