// Images: listed, looked into, compared, removed.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/call_monitor.h"
#include "daemon/connection_locks.h"
#include "daemon/copy_notes.h"
#include "daemon/dependency_images.h"
#include "daemon/function_image_uses.h"
#include "daemon/function_instances.h"
#include "daemon/image_difference.h"
#include "daemon/image_lookup.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/working_set.h"
#include "dedup_store/image_visit.h"
#include "dedup_store/removal.h"
#include "dedup_store/scrub.h"
#include "dedup_store/second_name.h"
#include "proto/rekindle/v1/image_layout.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/group_labels.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kSharesShown = 5;

absl::Status DescribeBytes(const Node& node, const Call& call, const store::Store& store,
                           const store::ImageInfo& info, v1::InspectImageResponse& response) {
  auto may_see = [&](const store::ImageInfo& other) {
    return node.policy().MayUse(call.caller, other.owner);
  };
  const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  RK_ASSIGN_OR_RETURN(store::ImageBytes bytes,
                      store.WhereBytesAre(info.reference, may_see, &monitor.cancelled()));
  v1::ImageBytes* out = response.mutable_bytes();
  out->set_logical_bytes(bytes.logical_bytes);
  out->set_zero_bytes(bytes.zero_bytes);
  out->set_unique_bytes(bytes.unique_bytes);
  out->set_shared_bytes(bytes.shared_bytes);
  out->set_unique_stored_bytes(bytes.unique_stored_bytes);
  out->set_shared_stored_bytes(bytes.shared_stored_bytes);
  out->set_compressed_from_bytes(bytes.compressed_from_bytes);
  out->set_compressed_to_bytes(bytes.compressed_to_bytes);
  out->set_raw_bytes(bytes.raw_bytes);
  out->set_metadata_bytes(bytes.metadata_bytes);
  out->set_others_stored_bytes(bytes.hidden_stored_bytes);
  for (size_t i = 0; i < bytes.shares.size() && i < kSharesShown; ++i) {
    v1::ImageShare* share = out->add_shares();
    share->set_reference(bytes.shares[i].reference);
    share->set_stored_bytes(bytes.shares[i].stored_bytes);
  }
  out->set_more_shares(static_cast<uint32_t>(bytes.shares.size()) - out->shares_size());
  for (const std::string& reference : bytes.unread) {
    response.add_warnings(absl::StrCat(
        reference.empty() ? std::string("an image of another owner") : absl::StrCat("image ", reference),
        " can't be read, so what it shares is not counted; `rekindle fsck` tells more"));
  }
  return absl::OkStatus();
}

void DescribeGpu(const v1::GpuState& state, v1::ImageGpu* out) {
  out->set_driver(state.driver());
  out->set_cuda_version(state.cuda_version());
  for (const v1::GpuOfImage& device : state.devices()) {
    v1::GpuDevice* entry = out->add_devices();
    entry->set_uuid(device.uuid());
    entry->set_model(device.model());
    entry->set_total_bytes(device.total_bytes());
  }
  for (const v1::GpuUseOfImage& use : state.uses()) {
    v1::GpuUse* entry = out->add_uses();
    entry->set_pid(use.pid());
    entry->set_uuid(use.uuid());
    if (use.has_bytes()) entry->set_bytes(use.bytes());
    out->set_device_bytes(out->device_bytes() + use.bytes());
  }
}

}  // namespace

absl::Status ListImages(Node& node, const Call& call, const v1::ListImagesRequest& request,
                        v1::ListImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  // The list is worth more than this.
  const std::vector<std::string> damaged =
      store::ReadDamagedImages(*store).value_or(std::vector<std::string>());
  const std::string of_name = request.name().empty() ? "" : absl::StrCat(request.name(), ":");
  const auto wanted = [&](const store::ImageInfo& image) {
    if (!absl::StrContains(image.reference, request.name_contains()) ||
        !node.policy().MayUse(call.caller, image.owner))
      return false;
    return of_name.empty() ||
           (absl::StartsWith(image.reference, of_name) && !v1::IsCopyLink(image.reference, image.labels));
  };
  return store::VisitImages(*store, wanted, [&](const store::ImageInfo& image) {
    v1::Image* out = response->add_images();
    ToProto(image, out);
    out->set_damaged(std::binary_search(damaged.begin(), damaged.end(), image.reference));
    return request.newest() == 0 || static_cast<uint32_t>(response->images_size()) < request.newest();
  });
}

absl::Status InspectImage(Node& node, const Call& call, const v1::InspectImageRequest& request,
                          v1::InspectImageResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "inspect"));
  ToProto(info, response->mutable_image());
  if (request.image_alone()) return absl::OkStatus();
  for (std::string& place : PlacesOfCopies(node, call, info)) response->add_copied_to(ToUtf8(place));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store->OpenImage(info.digest));
  RK_RETURN_IF_ERROR(DescribeBytes(node, call, *store, info, *response));
  std::map<std::string, uint64_t> bytes_of;
  for (const store::ObjectInfo& object : reader->objects()) {
    bytes_of[object.name] = object.bytes;
    if (!request.objects()) continue;
    v1::ImageObject* out = response->add_objects();
    out->set_name(object.name);
    out->set_paged(object.paged);
    out->set_bytes(object.bytes);
  }
  if (bytes_of.count(v1::kJobManifestObject) == 0) return absl::OkStatus();  // not made by a capture
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, restore::ReadJobManifest(*reader));
  for (const v1::JobProcess& process : manifest.processes()) {
    v1::ImageProcess* out = response->add_processes();
    out->set_pid(process.pid());
    out->set_parent_pid(process.parent_pid());
    out->set_command(process.command());
    out->set_threads(process.threads());
    auto memory = bytes_of.find(absl::StrCat(v1::kTaskMemoryPrefix, process.pid()));
    if (memory != bytes_of.end()) out->set_memory_bytes(memory->second);
  }
  response->set_criu_version(manifest.criu_version());
  response->set_kernel(manifest.kernel());
  response->set_machine(manifest.machine());
  response->set_freeze_seconds(manifest.freeze_seconds());
  response->set_job_name(manifest.job_name());
  response->set_command(manifest.command());
  response->set_working_directory(ToUtf8(manifest.working_directory()));
  response->set_log(ToUtf8(manifest.log()));
  if (manifest.has_gpu()) DescribeGpu(manifest.gpu(), response->mutable_gpu());
  for (const v1::WrittenFile& file : manifest.written_files()) {
    v1::FileOfImage* out = response->add_written_files();
    out->set_path(ToUtf8(file.path()));
    out->set_size(file.size());
    out->set_in_place(file.in_place());
    out->set_has_content(!file.tracked() && (file.size() == 0 || !file.content_object().empty()));
    out->set_tracked(file.tracked());
    out->set_modified_ns(file.modified_ns());
    out->set_shared_memory(file.shared_memory());
  }
  DescribeWorkingSet(*store, info, *response);
  return absl::OkStatus();
}

absl::Status DiffImages(Node& node, const Call& call, const v1::DiffImagesRequest& request,
                        v1::DiffImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo a, FindImageFor(node, *store, call.caller, request.a(), "compare"));
  RK_ASSIGN_OR_RETURN(store::ImageInfo b, FindImageFor(node, *store, call.caller, request.b(), "compare"));
  const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  RK_ASSIGN_OR_RETURN(std::vector<v1::AreaDifference> areas,
                      CompareImages(*store, a.digest, b.digest, &monitor.cancelled()));
  for (v1::AreaDifference& area : areas) *response->add_areas() = std::move(area);
  return absl::OkStatus();
}

namespace {

// What an image's second name has of its labels: not that it is a group's member's, or one that a supervisor
// goes on from and removes, nor of which process it was taken last.
std::map<std::string, std::string> LabelsOfSecondName(const store::ImageInfo& image) {
  std::map<std::string, std::string> labels = image.labels;
  std::erase_if(labels, [](const auto& label) {
    return absl::StartsWith(label.first, v1::kGroupLabel) ||
           absl::StartsWith(label.first, v1::kSupervisedLabel) || label.first == v1::kJobIdLabel;
  });
  return labels;
}

}  // namespace

absl::Status TagImage(Node& node, const Call& call, const v1::TagImageRequest& request,
                      v1::TagImageResponse* response) {
  RK_ASSIGN_OR_RETURN(const std::string reference, store::NormalizeReference(request.reference()));
  RK_RETURN_IF_ERROR(CheckNoNameOfFunctions(reference));
  RK_RETURN_IF_ERROR(CheckLabelsOfCaller(request.labels()));
  RK_RETURN_IF_ERROR(CheckNoOriginLabel(request.labels()));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kWrite));
  RK_ASSIGN_OR_RETURN(const store::ImageInfo image,
                      FindImageFor(node, *store, call.caller, request.image(), "tag"));
  if (image.reference == reference) {
    return absl::InvalidArgumentError(
        absl::StrCat("image ", reference, " has this name already: choose another one"));
  }
  store::SecondNameOptions options;
  options.reference = reference;
  options.owner = image.owner;  // whose memory it is
  options.replace = request.replace();
  options.replace_others = node.policy().IsAdmin(call.caller);
  options.labels = LabelsOfSecondName(image);
  for (const auto& [key, value] : request.labels()) options.labels[key] = value;
  RK_RETURN_IF_ERROR(store::CheckLabels(options.labels));
  const CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  options.cancel = &monitor.cancelled();
  // What has the name so far may have left more than its bytes.
  const absl::StatusOr<store::ImageInfo> replaced =
      options.replace ? store->Find(reference) : absl::NotFoundError("");
  std::optional<ConnectionLocks> of_replaced;
  if (replaced.ok()) of_replaced.emplace(*store, absl::MakeConstSpan(&*replaced, 1));
  RK_ASSIGN_OR_RETURN(const store::ImageInfo tagged, store::AddSecondName(*store, image, options));
  if (of_replaced && replaced->digest != image.digest) of_replaced->RemoveOf(*replaced);
  ToProto(tagged, response->mutable_image());
  return absl::OkStatus();
}

namespace {

// An image, as it was asked for and as it was found.
struct NamedImage {
  std::string name;
  store::ImageInfo info;
};

// For people, of one that functions start from; empty: none does. `prune` keeps such, `deps rm` refuses them.
std::string WarnOfFunctions(const FunctionImageUses& uses, const std::string& reference) {
  const std::vector<std::string> reasons = uses.ReasonsFor(reference);
  if (reasons.empty()) return "";
  const bool dependencies = absl::StartsWith(reference, kDependencyImages);
  return absl::StrCat(
      "image ", reference, " was in use: ", reasons.front(), reasons.size() > 1 ? ", and so do others" : "",
      dependencies
          ? ". It is made anew in the background, and until then these start from nothing: 'rekindle "
            "deps rm' removes those that none needs"
          : ". Another one is taken at the next start");
}

absl::Status RemoveThese(Node& node, const Call& call, store::Store& store,
                         absl::Span<const NamedImage> images, v1::RemoveImagesResponse* response) {
  const bool of_functions = std::any_of(images.begin(), images.end(), [](const NamedImage& image) {
    return absl::StartsWith(image.info.reference, kDependencyImages) ||
           absl::StartsWith(image.info.reference, kFunctionImages);
  });
  FunctionImageUses uses;
  if (of_functions) {
    RK_ASSIGN_OR_RETURN(uses, FunctionImageUses::Of(node.options().store));
  }
  const auto may = [&](const store::ImageInfo& info) {
    return node.policy().MayUseImage(call.caller, info.owner, "remove", info.reference);
  };
  for (size_t done = 0; done < images.size(); done += store::kRemovedAtOnce) {
    if (call.IsCancelled()) return absl::CancelledError("it was interrupted; all others are still there");
    const absl::Span<const NamedImage> some = images.subspan(done, store::kRemovedAtOnce);
    std::vector<store::ImageInfo> infos, found;
    for (const NamedImage& image : some) {
      found.push_back(image.info);
      // Whether a digest means one image alone Remove sees.
      infos.push_back(absl::StartsWith(image.name, "sha256:") ? store::ImageInfo() : image.info);
    }
    const ConnectionLocks locks(store, found);
    RK_ASSIGN_OR_RETURN(const std::vector<bool> removed, store::RemoveExactly(store, infos));
    for (size_t i = 0; i < some.size(); ++i) {
      // The name may be another image's by now.
      if (!removed[i]) RK_RETURN_IF_ERROR(store.Remove(some[i].name, may));
      response->add_removed(some[i].name);
      locks.RemoveOf(some[i].info);
      if (std::string warning = WarnOfFunctions(uses, some[i].info.reference); !warning.empty())
        response->add_warnings(std::move(warning));
      if (const std::string group = v1::GroupOf(some[i].info.labels); !group.empty()) {
        response->add_warnings(
            absl::StrCat("image ", some[i].info.reference, " was a member's of group ", group,
                         ", which can't be restored without it: 'rekindle group rm ", group,
                         "' on the group's coordinator removes what is left of it"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RemoveImages(Node& node, const Call& call, const v1::RemoveImagesRequest& request,
                          v1::RemoveImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kWrite));
  // All are checked before the first one goes: a misspelt name in a list removes nothing.
  std::vector<NamedImage> images;
  std::set<std::string> found;  // one can be named twice
  for (const std::string& image : request.images()) {
    RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                        FindImageFor(node, *store, call.caller, image, "remove", BareName::kLatestAlone));
    if (found.insert(info.reference).second) images.push_back({image, std::move(info)});
  }
  absl::Status removed = RemoveThese(node, call, *store, images, response);
  if (!response->removed().empty()) {
    node.clones().ForgetRemovedImages(*store);
    removed =
        Annotate(removed, absl::StrCat("removed ", absl::StrJoin(response->removed(), ", "), ", but then"));
  }
  return removed;
}

}  // namespace rekindle::daemon
