//! Who answers which operation.

use std::sync::Arc;

use axum::routing::{MethodFilter, MethodRouter, on};

use super::Operation;
use crate::api::{
    config, context::Api, events, instances, joining, membership, metrics, namespaces,
    node_settings, nodes, rollouts, sessions, tokens, usage, volume_moves, volumes, workloads,
};

pub(super) fn of(operation: Operation, filter: MethodFilter) -> MethodRouter<Arc<Api>> {
    match operation {
        Operation::Health => on(filter, config::health),
        Operation::Version => on(filter, config::version),
        Operation::OpenApi => on(filter, config::openapi),
        Operation::Metrics => on(filter, metrics::get),
        Operation::ListNamespaces => on(filter, namespaces::list),
        Operation::CreateNamespace => on(filter, namespaces::create),
        Operation::GetNamespace => on(filter, namespaces::get),
        Operation::DeleteNamespace => on(filter, namespaces::delete),
        Operation::ListAllWorkloads => on(filter, workloads::list_all),
        Operation::ListWorkloads => on(filter, workloads::list),
        Operation::CreateWorkload => on(filter, workloads::create),
        Operation::GetWorkload => on(filter, workloads::get),
        Operation::PutWorkload => on(filter, workloads::update),
        Operation::DeleteWorkload => on(filter, workloads::delete),
        Operation::ListGenerations => on(filter, rollouts::generations),
        Operation::RollBack => on(filter, rollouts::roll_back),
        Operation::PauseRollout => on(filter, rollouts::pause),
        Operation::ResumeRollout => on(filter, rollouts::resume),
        Operation::ScaleWorkload => on(filter, rollouts::scale),
        Operation::RestartWorkload => on(filter, rollouts::restart),
        Operation::ListFiles => on(filter, workloads::files),
        Operation::GetFile => on(filter, workloads::file),
        Operation::ListInstancesOfWorkload => on(filter, instances::list_of_workload),
        Operation::GetLogs => on(filter, instances::logs),
        Operation::Exec => on(filter, sessions::exec),
        Operation::Forward => on(filter, sessions::forward),
        Operation::ListAllInstances => on(filter, instances::list_all),
        Operation::ListInstances => on(filter, instances::list),
        Operation::GetInstance => on(filter, instances::get),
        Operation::ListAllVolumes => on(filter, volumes::list_all),
        Operation::ListVolumes => on(filter, volumes::list),
        Operation::GetVolume => on(filter, volumes::get),
        Operation::DeleteVolume => on(filter, volumes::delete),
        Operation::MoveVolume => on(filter, volume_moves::start),
        Operation::CancelVolumeMove => on(filter, volume_moves::cancel),
        Operation::ListNodes => on(filter, nodes::list),
        Operation::GetNode => on(filter, nodes::get),
        Operation::GetNodeUsage => on(filter, usage::of_node),
        Operation::GetNamespaceUsage => on(filter, usage::of_namespace),
        Operation::DeleteNode => on(filter, joining::leave),
        Operation::DrainNode => on(filter, node_settings::drain),
        Operation::UncordonNode => on(filter, node_settings::uncordon),
        Operation::PutNodeLabels => on(filter, node_settings::labels),
        Operation::PutNodeTaints => on(filter, node_settings::taints),
        Operation::ReportNode => on(filter, nodes::report),
        Operation::RenewCertificates => on(filter, joining::renew),
        Operation::GetMembership => on(filter, membership::get),
        Operation::Join => on(filter, joining::join),
        Operation::ListEvents => on(filter, events::list),
        Operation::GetClusterConfiguration => on(filter, config::cluster),
        Operation::ListTokens => on(filter, tokens::list),
        Operation::CreateToken => on(filter, tokens::create),
        Operation::DeleteToken => on(filter, tokens::delete),
    }
}
