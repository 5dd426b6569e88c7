// Images: listed, looked into, compared, removed.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "daemon/image_difference.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "proto/rekindle/v1/image_layout.h"
#include "restore/restore.h"

namespace rekindle::daemon {

absl::Status ListImages(Node& node, const Call& call, const v1::ListImagesRequest& request,
                        v1::ListImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> images, store->List());
  const bool admin = node.policy().IsAdmin(call.caller);
  for (const store::ImageInfo& image : images) {
    if (!admin && image.owner != call.caller.uid) continue;
    if (!absl::StrContains(image.reference, request.name_contains())) continue;
    ToProto(image, response->add_images());
  }
  return absl::OkStatus();
}

absl::Status InspectImage(Node& node, const Call& call, const v1::InspectImageRequest& request,
                          v1::InspectImageResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "inspect"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store->OpenImage(info.digest));
  ToProto(info, response->mutable_image());
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
  response->set_working_directory(manifest.working_directory());
  response->set_log(manifest.log());
  return absl::OkStatus();
}

absl::Status DiffImages(Node& node, const Call& call, const v1::DiffImagesRequest& request,
                        v1::DiffImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo a, FindImageFor(node, *store, call.caller, request.a(), "compare"));
  RK_ASSIGN_OR_RETURN(store::ImageInfo b, FindImageFor(node, *store, call.caller, request.b(), "compare"));
  RK_ASSIGN_OR_RETURN(std::vector<v1::AreaDifference> areas, CompareImages(*store, a.digest, b.digest));
  for (v1::AreaDifference& area : areas) *response->add_areas() = std::move(area);
  return absl::OkStatus();
}

absl::Status RemoveImages(Node& node, const Call& call, const v1::RemoveImagesRequest& request,
                          v1::RemoveImagesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kWrite));
  // All are checked before the first one goes: a misspelt name in a list removes nothing.
  for (const std::string& image : request.images()) {
    RK_RETURN_IF_ERROR(FindImageFor(node, *store, call.caller, image, "remove").status());
  }
  for (const std::string& image : request.images()) {
    absl::Status removed = store->Remove(image);
    if (!removed.ok()) {
      return response->removed().empty()
                 ? removed
                 : Annotate(removed,
                            absl::StrCat("removed ", absl::StrJoin(response->removed(), ", "), ", but then"));
    }
    response->add_removed(image);
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
