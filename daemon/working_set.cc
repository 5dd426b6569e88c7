#include "daemon/working_set.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/image_lookup.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "restore/lazy_image.h"

namespace rekindle::daemon {
namespace {

v1::WorkingSet::End EndToProto(restore::RecordingEnd end) {
  switch (end) {
    case restore::RecordingEnd::kUnknown:
      break;
    case restore::RecordingEnd::kReady:
      return v1::WorkingSet::READY;
    case restore::RecordingEnd::kAnswered:
      return v1::WorkingSet::ANSWERED;
    case restore::RecordingEnd::kTime:
      return v1::WorkingSet::TIME;
    case restore::RecordingEnd::kEnded:
      return v1::WorkingSet::ENDED;
  }
  return v1::WorkingSet::UNKNOWN;
}

absl::Status Describe(store::Store& store, const store::ImageInfo& info, v1::InspectImageResponse& response) {
  absl::StatusOr<std::string> note = store.GetNote(info.digest, store::kWorkingSetNote);
  if (absl::IsNotFound(note.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(note.status());
  RK_RETURN_IF_ERROR(restore::WorkingSet::Decode(*note).status());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<restore::LazyImage> image,
                      restore::LazyImage::Open(store, info.digest));
  const restore::LazyImage::Recorded recorded = image->recorded();
  v1::WorkingSet* out = response.mutable_working_set();
  out->set_pages(recorded.pages);
  out->set_bytes(recorded.pages * store::kPageSize);
  out->set_lazy_bytes(image->pages() * store::kPageSize);
  out->set_recordings(recorded.recordings);
  out->set_recorded_unix_ns(recorded.recorded_unix_ns);
  out->set_end(EndToProto(recorded.end));
  return absl::OkStatus();
}

}  // namespace

void DescribeWorkingSet(store::Store& store, const store::ImageInfo& info,
                        v1::InspectImageResponse& response) {
  absl::Status status = Describe(store, info, response);
  if (status.ok()) return;
  response.add_warnings(
      absl::StrCat("the working set is not shown: ", std::string(status.message()),
                   absl::IsDataLoss(status) ? "; `rekindle working-set drop` has it recorded anew" : ""));
}

absl::Status DropWorkingSet(Node& node, const Call& call, const v1::DropWorkingSetRequest& request,
                            v1::DropWorkingSetResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kWrite));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "drop the working set of"));
  node.clones().ForgetTouchedFiles(*store, info.digest);
  // Each that has it open would put it back.
  RK_ASSIGN_OR_RETURN(std::vector<restore::PagerClient> pagers, node.clones().ConnectToRunningPagers(*store));
  bool any = false;
  for (restore::PagerClient& pager : pagers) {
    RK_ASSIGN_OR_RETURN(const bool dropped, pager.DropWorkingSet(info.digest));
    any |= dropped;
  }
  if (pagers.empty()) {
    RK_ASSIGN_OR_RETURN(any, restore::RemoveWorkingSet(*store, info.digest));
  }
  response->set_dropped(any);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
