#include "daemon/proto_conversion.h"

#include <algorithm>
#include <cmath>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cgroup_folders.h"
#include "base/utf8.h"
#include "daemon/process_info.h"

namespace rekindle::daemon {
namespace {

// A job reports no more when it is silent for so long, and for so many of its steps.
constexpr double kFallenSilentSeconds = 10, kFallenSilentSteps = 5;

}  // namespace

void ToProto(const store::ImageInfo& info, v1::Image* image) {
  image->set_reference(info.reference);
  image->set_digest(info.digest);
  image->set_parent_digest(info.parent_digest);
  image->set_created_unix_ns(info.created_unix_ns);
  image->set_owner_uid(info.owner);
  image->set_logical_bytes(info.stats.logical_bytes);
  image->set_zero_bytes(info.stats.zero_bytes);
  image->set_parent_bytes(info.stats.parent_bytes);
  image->set_shared_bytes(info.stats.shared_bytes);
  image->set_new_bytes(info.stats.new_bytes);
  image->set_stored_bytes(info.stats.stored_bytes);
  image->set_metadata_bytes(info.stats.metadata_bytes);
  for (const auto& [key, value] : info.labels) (*image->mutable_labels())[key] = ToUtf8(value);
}

void ToProto(const store::GcReport& report, v1::CollectGarbageResponse* response) {
  response->set_packs_removed(report.packs_removed);
  response->set_packs_rewritten(report.packs_rewritten);
  response->set_bytes_freed(report.bytes_freed);
  response->set_leftovers_removed(report.leftovers_removed);
  response->set_packs_in_use(report.packs_in_use);
}

void ToProto(const store::StoreStats& stats, const store::StoreLimits& limits, v1::StoreQuota* quota) {
  quota->set_max_bytes(limits.store_max_bytes);
  quota->set_used_bytes(stats.pack_bytes + stats.metadata_bytes);
  quota->set_high_water_percent(limits.high_water_percent);
  quota->set_file_system_bytes(stats.file_system.total_bytes);
  quota->set_file_system_used_bytes(stats.file_system.used_bytes);
}

void ToProto(const JobRecord& record, v1::Job* job, const ProcessChildren* all) {
  job->set_pid(record.pid);
  job->set_name(record.name);
  job->set_command(ToUtf8(record.command));
  job->set_owner_uid(record.owner);
  job->set_started_unix_ns(record.started_unix_ns);
  job->set_image(record.image);
  job->set_log(ToUtf8(record.log));
  if (job->log() != record.log) job->set_log_path(record.log);
  if (!JobRegistry::Lives(record)) {
    job->set_state("exited");
    if (record.exit && record.exit->signal != 0) {
      job->set_signal(record.exit->signal);
    } else if (record.exit) {
      job->set_exit_code(record.exit->code);
    }
    return;
  }
  if (record.log.empty()) job->set_output(ToUtf8(OutputFileOf(record.pid)));
  const absl::StatusOr<ProcessStat> process = ReadProcessStat(record.pid);
  const bool stopped = process.ok() && (process->state == 'T' || process->state == 't');
  // A frozen one that was stopped before does nothing when it is only let go on.
  job->set_state(!FrozenCgroupOf(record.pid).empty() ? "frozen" : stopped ? "stopped" : "running");
  TreeUse use;
  if (all != nullptr) use = MeasureTree(record.pid, *all);
  if (use.processes == 0) use = MeasureTree(record.pid);  // also one that began after they were read
  job->set_processes(use.processes);
  job->set_resident_bytes(use.resident_bytes);
}

void ToProto(const rekindle_job_file_job& said, int64_t now_unix_ns, v1::JobProgress* progress) {
  progress->set_step(said.step);
  progress->set_total(said.total);
  progress->set_unix_ns(said.unix_ns);
  progress->set_boundaries(said.boundaries);
  // The job's user may have written anything.
  const double rate = said.steps_per_second;
  if (!std::isfinite(rate) || rate <= 0) return;
  const double silent = static_cast<double>(now_unix_ns) / 1e9 - static_cast<double>(said.unix_ns) / 1e9;
  if (silent <= std::max(kFallenSilentSeconds, kFallenSilentSteps / rate))
    progress->set_steps_per_second(rate);
}

void ToProto(const std::vector<std::pair<std::string, double>>& phases,
             google::protobuf::RepeatedPtrField<v1::PhaseTime>* out) {
  for (const auto& [name, seconds] : phases) {
    v1::PhaseTime* phase = out->Add();
    phase->set_name(name);
    phase->set_seconds(seconds);
  }
}

void ToProto(const Timeline& timeline, google::protobuf::RepeatedPtrField<v1::Span>* out) {
  for (const Span& span : timeline) {
    v1::Span* added = out->Add();
    added->set_process(span.process);
    added->set_thread(span.thread);
    added->set_name(span.name);
    added->set_begin_ns(span.begin_ns);
    added->set_duration_ns(span.duration_ns);
    added->mutable_numbers()->insert(span.numbers.begin(), span.numbers.end());
  }
}

void ToProto(const std::vector<std::string>& strings, google::protobuf::RepeatedPtrField<std::string>* out) {
  for (const std::string& s : strings) out->Add(std::string(s));
}

absl::StatusOr<gpu::DevicePairs> FromProto(const google::protobuf::RepeatedPtrField<v1::GpuPair>& pairs) {
  if (pairs.empty()) return gpu::DevicePairs();
  return gpu::ParseDevicePairs(absl::StrJoin(pairs, ",", [](std::string* out, const v1::GpuPair& pair) {
    absl::StrAppend(out, pair.from(), "=", pair.to());
  }));
}

}  // namespace rekindle::daemon
