//! What requests are made of, as a report has it.

use serde::{Deserialize, Serialize};

use super::ledger::{LedgerNs, LedgerTotals};
use crate::recording::{InnerOperation, RequestSums, RowRequest};

/// What some requests are made of. The operations and the time around them add up to
/// `duration_ns`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestParts {
    /// How many requests.
    pub count: u64,
    /// Their wall time, in nanoseconds.
    pub duration_ns: u64,
    /// The operations inside them.
    pub operations: Vec<InnerOperation>,
    /// Where the time around the operations went.
    pub around_ns: LedgerNs,
}

/// What the requests of a row are made of.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parts {
    /// All of them.
    pub total: RequestParts,
    /// The middle half by duration.
    pub typical: RequestParts,
    /// The slowest 1 %.
    pub p99: RequestParts,
    /// The slowest 0.1 %.
    pub p999: RequestParts,
}

impl From<&RequestSums> for RequestParts {
    fn from(sums: &RequestSums) -> Self {
        let around = LedgerTotals::from(&sums.around);
        let inside = sums.operations.iter().map(|operation| operation.total_ns);
        Self {
            count: around.count,
            duration_ns: inside.fold(around.duration_ns, u64::saturating_add),
            operations: sums.operations.clone(),
            around_ns: around.ledger_ns,
        }
    }
}

impl From<&RowRequest> for Parts {
    fn from(request: &RowRequest) -> Self {
        Self {
            total: (&request.total).into(),
            typical: (&request.typical).into(),
            p99: (&request.tail_p99).into(),
            p999: (&request.tail_p999).into(),
        }
    }
}
