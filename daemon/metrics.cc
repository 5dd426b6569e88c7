#include "daemon/metrics.h"

#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/copy_notes.h"
#include "daemon/function_rpcs.h"
#include "daemon/functions.h"
#include "daemon/rpcs.h"
#include "daemon/version.h"
#include "daemon/work_counts.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {
namespace {

using Labels = std::vector<std::pair<absl::string_view, std::string>>;

// Samples of one metric must follow one another, and they come job by job.
class Families {
 public:
  enum class Type { kGauge, kCounter };

  void Add(absl::string_view name, Type type, absl::string_view help, double value,
           const Labels& labels = {}) {
    AddSample(FamilyOf(name, type == Type::kCounter ? "counter" : "gauge", help), name, value, labels);
  }
  // `within`: so many were no more than each of `bounds`.
  void Histogram(absl::string_view name, absl::string_view help, absl::Span<const double> bounds,
                 absl::Span<const uint64_t> within, uint64_t count, double sum, const Labels& labels) {
    std::string& family = FamilyOf(name, "histogram", help);
    const auto bucket = [&](std::string bound, uint64_t so_many) {
      Labels more = labels;
      more.emplace_back("le", std::move(bound));
      AddSample(family, absl::StrCat(name, "_bucket"), static_cast<double>(so_many), more);
    };
    for (size_t i = 0; i < bounds.size(); ++i) bucket(absl::StrCat(bounds[i]), within[i]);
    bucket("+Inf", count);
    AddSample(family, absl::StrCat(name, "_sum"), sum, labels);
    AddSample(family, absl::StrCat(name, "_count"), static_cast<double>(count), labels);
  }
  void Gauge(absl::string_view name, absl::string_view help, double value, const Labels& labels = {}) {
    Add(name, Type::kGauge, help, value, labels);
  }
  void Counter(absl::string_view name, absl::string_view help, double value, const Labels& labels = {}) {
    Add(name, Type::kCounter, help, value, labels);
  }

  std::string Text() const {
    std::string text;
    for (const auto& [name, family] : by_name_) text += family;
    return text;
  }

 private:
  std::string& FamilyOf(absl::string_view name, absl::string_view type, absl::string_view help) {
    auto [family, is_new] = by_name_.try_emplace(std::string(name));
    if (is_new) {
      family->second =
          absl::StrCat("# HELP rekindle_", name, " ", help, "\n# TYPE rekindle_", name, " ", type, "\n");
    }
    return family->second;
  }
  static void AddSample(std::string& family, absl::string_view name, double value, const Labels& labels) {
    absl::StrAppend(&family, "rekindle_", name);
    for (size_t i = 0; i < labels.size(); ++i) {
      const std::string text =
          absl::StrReplaceAll(labels[i].second, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
      absl::StrAppend(&family, i == 0 ? "{" : ",", labels[i].first, "=\"", text, "\"");
    }
    absl::StrAppend(&family, labels.empty() ? " " : "} ");
    // All digits that a double has: bytes and nanoseconds are exact.
    absl::StrAppendFormat(&family, "%.17g\n", value);
  }

  std::map<std::string, std::string> by_name_;
};

double Seconds(int64_t unix_ns) { return static_cast<double>(unix_ns) * 1e-9; }
template <typename Integer>
double Number(Integer value) {
  return static_cast<double>(value);
}

void AddStore(const v1::GetStatsResponse& stats, Families& out) {
  out.Gauge("store_images", "Images in the store.", Number(stats.images()));
  out.Gauge("store_logical_bytes", "Memory in all images.", Number(stats.logical_bytes()));
  out.Gauge("store_pack_bytes", "What images take on disk.", Number(stats.pack_bytes()));
  out.Gauge("store_metadata_bytes", "Catalog, index, manifests and notes on disk.",
            Number(stats.metadata_bytes()));
  out.Gauge("store_free_bytes", "Free on the store's file system.", Number(stats.free_bytes()));
  if (stats.has_quota()) {
    const v1::StoreQuota& quota = stats.quota();
    out.Gauge("store_file_system_bytes", "Size of the store's file system.",
              Number(quota.file_system_bytes()));
    out.Gauge("store_file_system_used_bytes", "What is taken of it, by whomever.",
              Number(quota.file_system_used_bytes()));
    out.Gauge("store_high_water_ratio", "New images are refused once so much of it is taken; 0: no limit.",
              quota.high_water_percent() / 100.0);
    out.Gauge("store_used_bytes", "What the store takes on disk, as its limit counts it.",
              Number(quota.used_bytes()));
    out.Gauge("store_limit_bytes", "What it may take; 0: no limit.", Number(quota.max_bytes()));
  }
  if (stats.has_scrub()) {
    const v1::StoreScrub& scrub = stats.scrub();
    out.Gauge("store_scrub_last_end_timestamp_seconds",
              "When all stored bytes had last been read and verified; 0: not yet.",
              Seconds(scrub.last_ended_unix_ns()));
    out.Gauge("store_damaged_places", "Parts of the store that are not as they were written.",
              Number(scrub.damaged_places()));
    out.Gauge("store_damaged_images", "Images that can't be restored whole.",
              Number(scrub.damaged_images_size()));
  }
  if (!stats.has_memory()) return;
  const v1::MemoryTier& memory = stats.memory();
  out.Gauge("pager_cache_bytes", "Pages of images that the pager has in memory.", Number(memory.bytes()));
  out.Counter("pager_cache_hits_total", "Pages that were asked for and in memory.", Number(memory.hits()));
  out.Counter("pager_cache_misses_total", "Pages that were read from the store.", Number(memory.misses()));
  out.Gauge("pager_clones", "Clones whose memory still comes.", Number(memory.clones()));
  out.Counter("pager_clones_served_total", "Clones that had their memory.", Number(memory.clones_served()));
}

// Without their names, which a directory service might be asked for at each scrape.
void AddOwners(const store::Store& store, Families& out) {
  auto owners = store::MeasureOwners(store);
  const absl::StatusOr<store::StoreLimits> limits = store.Limits();
  if (!owners.ok() || !limits.ok()) return;
  const auto labels = [](uid_t uid) { return Labels{{"uid", absl::StrCat(uid)}}; };
  for (const auto& [uid, max] : limits->owner_max_bytes) (*owners)[uid];
  for (const auto& [uid, use] : *owners)
    out.Gauge("store_owner_used_bytes", "What a user's images take.", Number(use.bytes), labels(uid));
  for (const auto& [uid, max] : limits->owner_max_bytes) {
    if (max != 0) out.Gauge("store_owner_limit_bytes", "What they may take.", Number(max), labels(uid));
  }
}

void AddSupervised(const v1::Job& job, const Labels& labels, Families& out) {
  const v1::SupervisedState& state = job.supervised();
  out.Counter("job_checkpoints_total", "Images taken of a supervised job.", Number(state.checkpoints()),
              labels);
  out.Counter("job_restarts_total", "Times that it was brought back.", Number(state.restarts()), labels);
  if (state.has_attempts()) {
    out.Counter("job_attempts_total", "Restarts used up of those that it may have; others cost none.",
                Number(state.attempts()), labels);
  }
  out.Gauge("job_restarts_limit", "How many restarts may be used up before it is given up.",
            Number(state.policy().restarts()), labels);
  out.Counter("job_frozen_seconds_total", "Time that it stood still for images.",
              state.total_freeze_seconds(), labels);
  out.Gauge("job_last_freeze_seconds", "Time that it stood still for the last one.",
            state.last_freeze_seconds(), labels);
  out.Counter("job_run_seconds_total", "Time that it ran.", state.run_seconds(), labels);
  out.Counter("job_lost_seconds_total", "Work lost by failures.", state.lost_seconds(), labels);
  // Of one that has ended no image is awaited.
  if (state.phase() != "done" && state.phase() != "failed") {
    out.Gauge("job_interval_seconds", "Between two images; 0: none are taken by interval.",
              state.interval_seconds(), labels);
    out.Gauge("job_last_image_timestamp_seconds", "When its last image was taken; 0: there is none.",
              Seconds(state.last_image_unix_ns()), labels);
    out.Gauge("job_troubled", "1: its last image or restart has failed.", state.last_error().empty() ? 0 : 1,
              labels);
  }
  out.Gauge("job_given_up", "1: it is not brought back any more.", state.phase() == "failed" ? 1 : 0, labels);
}

void AddJobs(const v1::ListJobsResponse& jobs, Families& out) {
  std::map<std::string, int> by_state = {{"running", 0}, {"stopped", 0}, {"frozen", 0}, {"waiting", 0}};
  for (const v1::Job& job : jobs.jobs()) {
    ++by_state[job.state()];
    const Labels labels = {{"job", job.name()}};
    if (job.has_supervised()) AddSupervised(job, labels, out);
    if (job.state() == "exited") continue;
    // Others' names need not be unique.
    const Labels process = {{"job", job.name()}, {"pid", absl::StrCat(job.pid())}};
    out.Gauge("job_resident_bytes", "Memory of a job.", Number(job.resident_bytes()), process);
    if (job.has_progress()) {
      out.Gauge("job_step", "The step that it says it has done.", Number(job.progress().step()), process);
    }
  }
  for (const auto& [state, count] : by_state)
    out.Gauge("jobs", "Jobs that Rekindle has started or restored.", count, {{"state", state}});
}

void AddWork(const WorkCounts& counts, Families& out) {
  const std::initializer_list<std::tuple<const char*, const char*, const OutcomeCount&>> all = {
      {"captures_total", "Images that were to be taken, since the daemon began.", counts.captures},
      {"restores_total", "Jobs that were to be restored.", counts.restores},
      {"clones_total", "Clones that were to be started.", counts.clones}};
  for (const auto& [name, help, count] : all) {
    out.Counter(name, help, Number(count.done()), {{"result", "done"}});
    out.Counter(name, help, Number(count.failed()), {{"result", "failed"}});
  }
  out.Counter("captures_frozen_seconds_total", "Time that jobs stood still for images.",
              Seconds(counts.frozen_ns.load()));
  out.Counter("captures_stored_bytes_total", "What images added to the store.",
              Number(counts.stored_bytes.load()));
}

void AddCopies(const std::vector<v1::CopyState>& copies, Families& out) {
  for (const v1::CopyState& copy : copies) {
    const Labels labels = {
        {"name", copy.name()}, {"place", copy.place()}, {"uid", absl::StrCat(copy.owner_uid())}};
    out.Gauge(
        "copy_last_timestamp_seconds",
        "When the last image of a name was found to be at a place that they are copied to; 0: none was.",
        Seconds(copy.copied_unix_ns()), labels);
    if (copy.ended()) continue;
    out.Gauge("copy_behind_timestamp_seconds",
              "Since when there is a newer one here than there; 0: there is none.",
              Seconds(copy.behind_since_unix_ns()), labels);
    out.Gauge("copy_troubled", "1: newer images do not get there.", copy.trouble().empty() ? 0 : 1, labels);
  }
}

void AddStartTimes(const Functions& functions, Families& out) {
  for (const functions::StartTimes& times : functions.StartTimes()) {
    out.Histogram("function_start_seconds", "How long starts of instances took, by what they were made of.",
                  functions::StartTimes::kBounds, times.within, times.count, times.seconds,
                  {{"level", functions::NameOf(times.level)}});
  }
}

void AddFunctions(const v1::FunctionStatsResponse& stats, Families& out) {
  for (const v1::FunctionStats& function : stats.functions()) {
    const Labels labels = {{"function", function.name()}};
    auto with = [&](absl::string_view name, absl::string_view value) {
      Labels more = labels;
      more.emplace_back(name, std::string(value));
      return more;
    };
    out.Counter("function_invocations_total", "Invocations of a function.", Number(function.invocations()),
                labels);
    out.Counter("function_errors_total", "Invocations that failed, time-outs too.", Number(function.errors()),
                labels);
    out.Counter("function_timeouts_total", "Invocations that took too long.", Number(function.timeouts()),
                labels);
    out.Counter("function_throttles_total", "Invocations refused: too many at once.",
                Number(function.throttles()), labels);
    out.Gauge("function_instances", "Its instances.", function.instances_busy(), with("state", "busy"));
    out.Gauge("function_instances", "Its instances.", function.instances_idle(), with("state", "idle"));
    out.Gauge("function_memory_bytes", "Memory of its instances.", Number(function.memory_bytes()), labels);
    out.Gauge("function_queued", "Invocations that wait.", Number(function.queued()), labels);
    out.Gauge("function_duration_seconds", "Of its handler, lately.", function.duration_median_seconds(),
              with("quantile", "0.5"));
    out.Gauge("function_duration_seconds", "Of its handler, lately.", function.duration_p99_seconds(),
              with("quantile", "0.99"));
    for (const v1::FunctionStarts& starts : function.starts()) {
      out.Counter("function_starts_total", "Starts of instances, by what they were made of.",
                  Number(starts.count()), with("level", starts.level()));
    }
  }
  const v1::FunctionRefusals& refused = stats.refused();
  const std::initializer_list<std::pair<const char*, uint64_t>> reasons = {
      {"connections", refused.connections()},
      {"connections_of_one", refused.connections_of_one()},
      {"bodies", refused.bodies()},
      {"bodies_of_one", refused.bodies_of_one()},
      {"too_large", refused.too_large()},
      {"events", refused.events()},
      {"events_of_one", refused.events_of_one()}};
  for (const auto& [reason, count] : reasons) {
    out.Counter("function_refusals_total", "Calls refused before they came to a function.", Number(count),
                {{"reason", reason}});
  }
}

void AddGpuLeases(const GpuJobs& jobs, Families& out) {
  const GpuArbiterCounters counters = jobs.counters();
  out.Counter("gpu_leases_given_total", "Leases of GPU jobs that were given.", Number(counters.leases));
  out.Counter("gpu_lease_waits_total", "Requests for a lease that could not be served at once.",
              Number(counters.waits));
  const std::initializer_list<std::pair<const char*, uint64_t>> ends = {
      {"timeout", counters.timeouts}, {"cancelled", counters.cancelled}, {"refused", counters.refused}};
  for (const auto& [reason, count] : ends) {
    out.Counter("gpu_leases_not_given_total", "Requests for a lease that got none.", Number(count),
                {{"reason", reason}});
  }
  out.Counter("gpu_resumes_total", "Jobs brought back onto their GPUs for a lease.",
              Number(counters.resumes));
  out.Counter("gpu_evictions_total", "Jobs parked to make room for a lease.", Number(counters.evictions));
  out.Counter("gpu_move_failures_total", "Moves for leases, and looks at the GPUs, that failed.",
              Number(counters.failures));
  out.Counter("gpu_job_deaths_total", "Known GPU jobs that were found dead.", Number(counters.deaths));

  int resident = 0, parked = 0, moving = 0, leased = 0, pinned = 0, lasting = 0, held = 0, waiting = 0;
  for (const auto& [pid, job] : jobs.Known()) {
    ++(job.state == GpuJobState::kResident ? resident : job.state == GpuJobState::kParked ? parked : moving);
    leased += job.leases > 0 ? 1 : 0;
    pinned += job.pinned ? 1 : 0;
    lasting += job.leases - job.held;
    held += job.held;
    waiting += job.waiters;
  }
  const std::initializer_list<std::pair<const char*, int>> states = {
      {"resident", resident}, {"parked", parked}, {"moving", moving}};
  for (const auto& [state, count] : states)
    out.Gauge("gpu_jobs", "GPU jobs that are leased or may make room.", count, {{"state", state}});
  out.Gauge("gpu_jobs_leased", "Those of them that are leased now.", leased);
  out.Gauge("gpu_jobs_pinned", "Those of them that are pinned.", pinned);
  out.Gauge("gpu_leases", "Leases there are now.", lasting, {{"kind", "lasting"}});
  out.Gauge("gpu_leases", "Leases there are now.", held, {{"kind", "held"}});
  out.Gauge("gpu_lease_waiters", "Requests that wait for a lease.", waiting);
  out.Gauge("gpu_parked_bytes", "Device memory of parked jobs that host memory holds.",
            Number(jobs.host_bytes()));
  if (jobs.host_budget() != UINT64_MAX) {
    out.Gauge("gpu_parked_limit_bytes", "How much of it there may be (--gpu-host-memory).",
              Number(jobs.host_budget()));
  }
}

}  // namespace

std::string MetricsText(Node& node) {
  Families out;
  out.Gauge("build_info", "Its version.", 1, {{"version", kVersion}});
  const Call call;  // our own
  v1::GetStatsResponse stats;
  if (GetStats(node, call, {}, &stats).ok()) AddStore(stats, out);
  if (const auto store = node.OpenStore(Node::Access::kRead); store.ok()) AddOwners(**store, out);
  v1::ListJobsRequest all;
  all.set_all(true);
  v1::ListJobsResponse jobs;
  if (ListJobsAlone(node, call, all, &jobs).ok()) AddJobs(jobs, out);
  AddWork(node.counts(), out);
  AddCopies(CopyStatesFor(node, call), out);
  AddGpuLeases(node.gpu_jobs(), out);
  v1::FunctionStatsResponse functions;
  if (FunctionStats(node, call, {}, &functions).ok()) AddFunctions(functions, out);
  if (const auto at_work = node.functions(); at_work.ok()) AddStartTimes(**at_work, out);
  return out.Text();
}

}  // namespace rekindle::daemon
