// What keeps the store from growing: quotas and retention.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/image_reference.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/call_monitor.h"
#include "daemon/connection_locks.h"
#include "daemon/functions.h"
#include "daemon/image_needs.h"
#include "daemon/old_copy_links.h"
#include "daemon/proto_conversion.h"
#include "daemon/prune_rules.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_record.h"
#include "daemon/user_names.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/removal.h"
#include "dedup_store/retention.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/group_labels.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

absl::Status DescribeQuota(const Node& node, const Caller& caller, const store::Store& store,
                           const store::StoreLimits& limits, v1::GetQuotaResponse* response) {
  const bool admin = node.policy().IsAdmin(caller);
  RK_ASSIGN_OR_RETURN(auto owners, store::MeasureOwners(store));
  for (const auto& [uid, max] : limits.owner_max_bytes) owners[uid];
  if (!admin) owners[caller.uid];
  const auto functions = node.functions();
  if (functions.ok()) {
    for (const functions::FunctionRecord& record : (*functions)->Records(caller)) owners[record.owner.uid];
  }
  for (const auto& [uid, use] : owners) {
    if (!node.policy().MayUse(caller, uid)) continue;
    v1::OwnerQuota* owner = response->add_owners();
    owner->set_uid(uid);
    owner->set_name(UserName(uid));
    owner->set_images(use.images);
    owner->set_used_bytes(use.bytes);
    if (functions.ok()) owner->set_code_bytes((*functions)->CodeBytes(uid));
    auto limit = limits.owner_max_bytes.find(uid);
    if (limit != limits.owner_max_bytes.end()) owner->set_max_bytes(limit->second);
  }
  if (!admin) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(store::StoreStats stats, store.Stats());
  ToProto(stats, limits, response->mutable_store());
  if (functions.ok()) response->mutable_store()->set_code_bytes((*functions)->CodeBytes(std::nullopt));
  return absl::OkStatus();
}

// Those that the caller may remove, of the names asked for.
absl::StatusOr<std::vector<store::ImageInfo>> Candidates(const Node& node, const Caller& caller,
                                                         const store::Store& store,
                                                         const v1::PruneImagesRequest& request) {
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> images, store.List());
  std::erase_if(images, [&](const store::ImageInfo& i) {
    return !node.policy().MayUse(caller, i.owner) || v1::IsCopyLink(i.reference, i.labels);
  });
  if (request.all()) return images;
  std::set<std::string, std::less<>> known, names;
  for (const store::ImageInfo& image : images) known.emplace(NameOfReference(image.reference));
  for (const std::string& name : request.names()) {
    RK_RETURN_IF_ERROR(CheckPrunedName(name));
    if (!known.contains(name))
      return absl::NotFoundError(absl::StrCat("there is no image of the name ", name));
    names.insert(name);
  }
  std::erase_if(images, [&](const store::ImageInfo& image) {
    return !names.contains(NameOfReference(image.reference));
  });
  return images;
}

// Why the image is kept although no rule does so: the set that it belongs to is complete with it alone.
std::vector<std::string> ReasonsOfGroup(const store::ImageInfo& image) {
  const std::string group = v1::GroupOf(image.labels);
  if (group.empty()) return {};
  return {absl::StrCat("it is of group ", group, ": see 'rekindle group rm', or prune with --groups")};
}

// What is not to be kept; drops from `decisions` what others have removed or replaced meanwhile.
absl::Status RemoveUnkept(const Call& call, store::Store& store,
                          std::vector<store::RetentionDecision>* decisions,
                          v1::PruneImagesResponse* response) {
  std::vector<store::ImageInfo> unkept;
  for (const store::RetentionDecision& decision : *decisions) {
    if (!decision.keep) unkept.push_back(decision.image);
  }
  std::set<std::string> missed;
  const absl::Span<const store::ImageInfo> all(unkept);
  for (size_t done = 0; done < all.size(); done += store::kRemovedAtOnce) {
    const auto so_far = [&] {
      return absl::StrCat("removed ", response->removed(), " of ", all.size(), " images, then");
    };
    if (call.IsCancelled())
      return absl::CancelledError(absl::StrCat(so_far(), " it was interrupted; the others are still there"));
    // Whoever is restoring one has it open: its bytes stay until he is done.
    const absl::Span<const store::ImageInfo> some = all.subspan(done, store::kRemovedAtOnce);
    const ConnectionLocks locks(store, some);
    const absl::StatusOr<std::vector<bool>> removed = store::RemoveExactly(store, some);
    if (!removed.ok()) return Annotate(removed.status(), so_far());
    for (size_t i = 0; i < some.size(); ++i) {
      if ((*removed)[i]) {
        response->set_removed(response->removed() + 1);
        locks.RemoveOf(some[i]);
      } else {
        missed.insert(some[i].reference);
      }
    }
  }
  std::erase_if(*decisions, [&](const store::RetentionDecision& decision) {
    return missed.contains(decision.image.reference);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status GetQuota(Node& node, const Call& call, const v1::GetQuotaRequest&,
                      v1::GetQuotaResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::StoreLimits limits, store->Limits());
  return DescribeQuota(node, call.caller, *store, limits, response);
}

absl::Status SetQuota(Node& node, const Call& call, const v1::SetQuotaRequest& request,
                      v1::GetQuotaResponse* response) {
  RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "set limits of the store"));
  store::LimitsChange change;
  if (request.owner().empty() && request.owner_max_bytes() != 0)
    return absl::InvalidArgumentError("a limit of an owner needs the owner: give a user's name or number");
  if (!request.owner().empty()) {
    RK_ASSIGN_OR_RETURN(uid_t uid, UserOfText(request.owner()));
    // Earlier clients leave out a 0, and mean it.
    const bool others = request.has_store_max_bytes() || request.has_high_water_percent();
    if (others && !request.has_owner_max_bytes()) {
      return absl::InvalidArgumentError(
          "an owner is given without a limit (owner_max_bytes; 0: none), beside other limits: give it, or "
          "leave out the owner. Of an earlier Rekindle: take an owner's limit off in a request of its own");
    }
    change.owner = {uid, request.owner_max_bytes()};
  }
  if (request.has_store_max_bytes()) change.store_max_bytes = request.store_max_bytes();
  if (request.has_high_water_percent()) change.high_water_percent = request.high_water_percent();
  // Limits may be set before the first image comes.
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kCreate));
  std::string warning;
  RK_ASSIGN_OR_RETURN(store::StoreLimits limits, store->ChangeLimits(change, &warning));
  if (!warning.empty()) response->add_warnings(warning);
  Log(LogLevel::kInfo, absl::StrCat("uid ", call.caller.uid, " changed the limits of the store"));
  return DescribeQuota(node, call.caller, *store, limits, response);
}

absl::Status PruneImages(Node& node, const Call& call, const v1::PruneImagesRequest& request,
                         v1::PruneImagesResponse* response) {
  if (request.collect_garbage()) {
    RK_RETURN_IF_ERROR(node.policy().MayAdminister(call.caller, "collect the store's garbage"));
  }
  RK_ASSIGN_OR_RETURN(const RetentionRules rules, RulesOf(request));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store,
                      node.OpenStore(request.dry_run() ? Node::Access::kRead : Node::Access::kWrite));
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> images, Candidates(node, call.caller, *store, request));
  RK_ASSIGN_OR_RETURN(const ImageNeeds needs, ImageNeeds::Of(node));
  std::vector<store::RetentionDecision> decisions =
      DecideRetention(std::move(images), rules, UnixNanos(), absl::LocalTimeZone());
  for (store::RetentionDecision& decision : decisions) {
    std::vector<std::string> reasons = needs.ReasonsFor(decision.image);
    if (!request.groups()) {
      for (std::string& reason : ReasonsOfGroup(decision.image)) reasons.push_back(std::move(reason));
    }
    for (std::string& reason : reasons) {
      decision.keep = true;
      decision.reasons.push_back(std::move(reason));
    }
  }
  absl::Status done;
  if (!request.dry_run()) done = RemoveUnkept(call, *store, &decisions, response);
  for (const store::RetentionDecision& decision : decisions) {
    v1::PrunedImage* out = response->add_images();
    ToProto(decision.image, out->mutable_image());
    out->set_keep(decision.keep);
    ToProto(decision.reasons, out->mutable_reasons());
    if (!decision.keep) {
      response->set_removed_stored_bytes(response->removed_stored_bytes() +
                                         store::QuotaBytes(decision.image.stats));
    }
  }
  if (response->removed() > 0) node.clones().ForgetRemovedImages(*store);
  RK_RETURN_IF_ERROR(done);
  if (request.collect_garbage() && !request.dry_run()) {
    RK_RETURN_IF_ERROR(RemoveOldCopyLinks(node, *store));
    const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
    store::GcOptions options;
    options.cancel = &monitor.cancelled();
    const absl::StatusOr<store::GcReport> report = store->Gc(options);
    if (!report.ok())
      return Annotate(report.status(), absl::StrCat("removed ", response->removed(), " images, then"));
    node.clones().ForgetRemovedImages(*store, /*collected=*/true);
    ToProto(*report, response->mutable_garbage());
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
