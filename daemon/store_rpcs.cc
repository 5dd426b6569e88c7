// The store as a whole.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/call_monitor.h"
#include "daemon/old_copy_links.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "dedup_store/scrub.h"
#include "restore/pager_client.h"

namespace rekindle::daemon {
namespace {

// Starts no pager for it.
absl::Status DescribeMemory(const Node& node, const store::Store& store, v1::GetStatsResponse* response) {
  auto pager = node.clones().ConnectToRunningPager(store);
  if (absl::IsNotFound(pager.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Annotate(pager.status(), "asking the pager what it has in memory"));
  RK_ASSIGN_OR_RETURN(restore::PagerClient::Numbers numbers, pager->Stats());
  const restore::FrameCacheStats& cache = numbers.cache;
  v1::MemoryTier* memory = response->mutable_memory();
  memory->set_bytes(cache.bytes);
  memory->set_taken_bytes(cache.memory_bytes);
  memory->set_bound_bytes(cache.budget_bytes);
  memory->set_huge_bytes(numbers.huge_bytes);
  memory->set_hits(cache.hits);
  memory->set_misses(cache.misses);
  if (const uint64_t all = cache.hits + cache.misses; all > 0) {
    memory->set_hit_rate(static_cast<double>(cache.hits) / static_cast<double>(all));
  }
  memory->set_evictions(cache.evictions);
  memory->set_refusals(cache.refusals);
  memory->set_frames(cache.frames);
  memory->set_warmed_frames(cache.warmed);
  memory->set_warming(numbers.warming);
  memory->set_clones(static_cast<uint32_t>(numbers.clones));
  memory->set_missing_pages(numbers.missing_pages);
  memory->set_clones_served(numbers.clones_served);
  memory->set_images(static_cast<uint32_t>(numbers.images));
  return absl::OkStatus();
}

constexpr size_t kDamageShown = 20;

// Where it can't be read there is no `scrub`: what is not known must not look like no damage.
absl::Status DescribeScrub(const store::Store& store, v1::GetStatsResponse* response) {
  RK_ASSIGN_OR_RETURN(const store::ScrubStatus status, store::ReadScrubStatus(store));
  v1::StoreScrub* scrub = response->mutable_scrub();
  const store::ScrubState& state = status.state;
  scrub->set_last_began_unix_ns(state.last_began_unix_ns);
  scrub->set_last_ended_unix_ns(state.last_ended_unix_ns);
  scrub->set_last_bytes(state.last_bytes);
  scrub->set_pass_began_unix_ns(state.pass_began_unix_ns);
  scrub->set_pass_bytes(state.pass_bytes);
  scrub->set_pass_bytes_left(status.pass_bytes_left);
  scrub->set_damaged_places(state.damage.size());
  ToProto(status.damaged_images, scrub->mutable_damaged_images());
  for (size_t i = 0; i < state.damage.size() && i < kDamageShown; ++i) {
    const store::ScrubDamage& damage = state.damage[i];
    v1::ScrubDamage* entry = scrub->add_damage();
    entry->set_pack(absl::StrCat(absl::Hex(damage.pack, absl::kZeroPad16)));
    entry->set_offset(damage.offset);
    entry->set_why(ToUtf8(damage.why));
    entry->set_found_unix_ns(damage.found_unix_ns);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CollectGarbage(Node& node, const Call& call, const v1::CollectGarbageRequest& request,
                            v1::CollectGarbageResponse* response) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "collect the store's garbage"));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store,
                      node.OpenStore(request.dry_run() ? Node::Access::kRead : Node::Access::kWrite));
  store::GcOptions options;
  options.dry_run = request.dry_run();
  const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  options.cancel = &monitor.cancelled();
  if (!request.dry_run()) RK_RETURN_IF_ERROR(RemoveOldCopyLinks(node, *store));
  RK_ASSIGN_OR_RETURN(store::GcReport report, store->Gc(options));
  if (!request.dry_run()) node.clones().ForgetRemovedImages(*store, /*collected=*/true);
  ToProto(report, response);
  return absl::OkStatus();
}

namespace {

// What is read whole may turn out to be damaged, and new images are to know that. A store that can't be
// written is checked all the same.
absl::StatusOr<std::shared_ptr<store::Store>> OpenToCheck(Node& node, const v1::FsckRequest& request) {
  if (request.repair()) return node.OpenStore(Node::Access::kRepair);
  if (request.read_data()) {
    auto store = node.OpenStore(Node::Access::kWrite);
    if (!absl::IsPermissionDenied(store.status())) return store;
  }
  return node.OpenStore(Node::Access::kRead);
}

}  // namespace

absl::Status Fsck(Node& node, const Call& call, const v1::FsckRequest& request,
                  const EventSink<v1::FsckEvent>& send) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "check the store"));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, OpenToCheck(node, request));
  CallMonitor monitor(call, [&send](const v1::Progress& progress) {
    v1::FsckEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  Stopwatch stopwatch;
  store::FsckOptions options;
  options.read_data = request.read_data();
  options.repair = request.repair();
  options.cancel = &monitor.cancelled();
  options.progress = [&](uint64_t done, uint64_t total) {
    monitor.Report("check", done, total, stopwatch.seconds());
  };
  absl::StatusOr<store::FsckReport> report = store->Fsck(options);
  monitor.Stop();
  RK_RETURN_IF_ERROR(report.status());
  v1::FsckEvent event;
  v1::FsckResult* result = event.mutable_result();
  result->set_images_checked(report->images_checked);
  result->set_chunks_checked(report->chunks_checked);
  result->set_bytes_read(report->bytes_read);
  ToProto(report->problems, result->mutable_problems());
  ToProto(report->lost_images, result->mutable_lost_images());
  send(event);
  return absl::OkStatus();
}

absl::Status GetStats(Node& node, const Call& call, const v1::GetStatsRequest&,
                      v1::GetStatsResponse* response) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "see the store's totals"));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::StoreStats stats, store->Stats());
  response->set_images(stats.images);
  response->set_packs(stats.packs);
  response->set_chunks(stats.chunks);
  response->set_logical_bytes(stats.logical_bytes);
  response->set_pack_bytes(stats.pack_bytes);
  response->set_metadata_bytes(stats.metadata_bytes);
  response->set_free_bytes(stats.file_system.free_bytes);
  if (absl::StatusOr<store::StoreLimits> limits = store->Limits(); limits.ok()) {
    ToProto(stats, *limits, response->mutable_quota());
  } else {
    response->add_warnings(std::string(limits.status().message()));
  }
  for (const absl::Status& told : {DescribeMemory(node, *store, response), DescribeScrub(*store, response)}) {
    if (!told.ok()) response->add_warnings(std::string(told.message()));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
