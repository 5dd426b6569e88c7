#include "cli/place_removal.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/bucket.h"
#include "cli/bucket_images.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/copy_source.h"
#include "cli/endpoint.h"
#include "cli/exit_code.h"
#include "cli/place_pruning.h"
#include "cli/transfer_arguments.h"

namespace rekindle::cli {
namespace {

constexpr size_t kImagesNamed = 5;

bool IsDigest(absl::string_view image) {
  return absl::StartsWith(image, "sha256:") || absl::StrContains(image, "@");
}

std::string Named(const std::vector<std::string>& images) {
  const size_t named = std::min(images.size(), kImagesNamed);
  std::string text = absl::StrJoin(images.begin(), images.begin() + static_cast<ptrdiff_t>(named), ", ");
  if (named < images.size()) absl::StrAppend(&text, " and ", images.size() - named, " more");
  return text;
}

// The images of an object store. All or, where one of them must stay, none.
class BucketRemoval {
 public:
  BucketRemoval(Bucket& bucket, const Output& output, const RemoveElsewhere& what)
      : bucket_(bucket), output_(output), what_(what) {}

  absl::StatusOr<v1::RemoveImagesResponse> Run() {
    std::map<std::string, std::set<std::string>> tags;
    for (const std::string& image : what_.request.images()) {
      tags[NameOf(image)].insert(TagOf(image));
    }
    for (const auto& [name, of_name] : tags) {
      RK_ASSIGN_OR_RETURN(Folder folder, Plan(name, of_name));
      folders_.push_back(std::move(folder));
    }
    for (const Folder& folder : folders_) {
      const absl::Status removed = Remove(folder);
      if (removed.ok()) continue;
      if (response_.removed().empty()) return removed;
      return Annotate(removed, absl::StrCat("removed ", absl::StrJoin(response_.removed(), ", "), ", then"));
    }
    return std::move(response_);
  }

 private:
  struct Folder {
    std::string name;
    BucketImages images;
    std::vector<BucketImage> going, parts;  // of those
  };

  absl::StatusOr<Folder> Plan(const std::string& name, const std::set<std::string>& tags) {
    absl::StatusOr<std::vector<BucketObject>> objects = bucket_.List(name, Bucket::Times::kAsked);
    if (absl::IsNotFound(objects.status())) {
      return absl::NotFoundError(absl::StrCat("there is no image of the name ", name, " in ", what_.from));
    }
    RK_RETURN_IF_ERROR(objects.status());
    Folder folder{name, BucketImages(*objects), {}, {}};
    std::set<std::string> found, objects_going;
    for (const BucketImage& image : folder.images.complete()) {
      if (IsStrayLink(image) || !tags.contains(image.tag)) continue;
      found.insert(image.tag);
      objects_going.insert(image.ImageObject());
      objects_going.insert(image.JsonObject());
      folder.going.push_back(image);
    }
    for (const std::string& tag : tags) {
      if (found.contains(tag)) continue;
      return absl::NotFoundError(absl::StrCat("there is no image ", name, ":", tag, " in ", what_.from,
                                              " ('rekindle ls --from ", what_.from,
                                              "' shows what is there). Nothing was removed"));
    }
    std::vector<BucketObject> left;
    for (const BucketObject& object : *objects) {
      if (!objects_going.contains(object.name)) left.push_back(object);
    }
    const BucketImages after(left);
    RK_RETURN_IF_ERROR(CheckNoneIsNeeded(folder, after, UnfinishedBefore(*objects)));
    std::set<std::string> needed;
    for (const BucketImage& image : after.complete()) {
      if (IsStrayLink(image)) continue;
      for (const BucketImage& link : after.Chain(image.origin)) needed.insert(link.ImageObject());
    }
    for (const BucketImage& image : folder.going) {
      for (const BucketImage& part : folder.images.PartsOf(image)) {
        if (needed.insert(part.ImageObject()).second) folder.parts.push_back(part);
      }
    }
    return folder;
  }

  // `after`: what is there when those that are to go are not.
  absl::Status CheckNoneIsNeeded(const Folder& folder, const BucketImages& after,
                                 absl::Time unfinished_before) {
    std::vector<std::string> upon;
    std::string needed;
    const auto check = [&](const BucketImage& image, const std::string& origin) {
      if (after.HasChain(origin) || !folder.images.HasChain(origin)) return;
      upon.push_back(absl::StrCat(folder.name, ":", image.tag));
      if (!needed.empty()) return;
      for (const BucketImage& link : folder.images.Chain(origin)) {
        const auto is_it = [&](const BucketImage& one) { return one.ImageObject() == link.ImageObject(); };
        if (std::any_of(folder.going.begin(), folder.going.end(), is_it)) needed = link.tag;
      }
    };
    for (const BucketImage& image : after.complete()) {
      if (!IsStrayLink(image)) check(image, image.origin);
    }
    const size_t there = upon.size();
    for (const BucketImage& image : after.incomplete()) {
      if (!image.base.empty() && image.written >= unfinished_before) check(image, image.base);
    }
    if (upon.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(folder.name, ":", needed, " stays in ", what_.from, ": ", Named(upon),
                     upon.size() == 1 ? " builds upon it" : " build upon it",
                     there < upon.size() ? " (or will, once it has arrived)" : "",
                     ". Remove that with it, or first. Nothing was removed"));
  }

  absl::Status Remove(const Folder& folder) {
    std::vector<std::string> markers, contents;
    for (const auto* images : {&folder.going, &folder.parts}) {
      for (const BucketImage& image : *images) {
        markers.push_back(image.JsonObject());
        contents.push_back(image.ImageObject());
      }
    }
    // An image whose removal is interrupted is no longer complete.
    RK_RETURN_IF_ERROR(bucket_.Remove(folder.name, markers));
    RK_RETURN_IF_ERROR(bucket_.Remove(folder.name, contents));
    std::set<std::string> told;
    for (const BucketImage& image : folder.going) {
      if (told.insert(image.tag).second) response_.add_removed(absl::StrCat(folder.name, ":", image.tag));
    }
    return WarnOfLost(bucket_, output_, folder.name, folder.images, what_.from);
  }

  Bucket& bucket_;
  const Output& output_;
  const RemoveElsewhere& what_;
  std::vector<Folder> folders_;
  v1::RemoveImagesResponse response_;
};

}  // namespace

absl::StatusOr<RemoveElsewhere> RemovalFrom(v1::RemoveImagesRequest request, const std::string& place,
                                            bool tls, const std::string& working_directory) {
  RK_ASSIGN_OR_RETURN(ImagePlace where, ParsePlace("--from", place, tls, working_directory));
  if (!where.bucket.empty()) {
    for (const std::string& image : request.images()) {
      const size_t slash = image.rfind('/');
      const bool has_tag = image.find(':', slash == std::string::npos ? 0 : slash) != std::string::npos;
      if (!IsDigest(image) && has_tag) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "'", image, "': an object store has images by their names: give NAME:TAG, as 'rekindle ls --from ",
          place, "' shows them"));
    }
  }
  return RemoveElsewhere{std::move(request), std::move(where.where), std::move(where.bucket)};
}

int RemoveImagesElsewhere(const GlobalOptions& globals, const Output& output, const RemoveElsewhere& what) {
  if (what.bucket.empty()) {
    absl::StatusOr<std::unique_ptr<Client>> opened = OpenElsewhere(globals, what.from);
    if (!opened.ok()) return output.Fail(opened.status());
    return RemoveImages(**opened, output, what.request,
                        absl::StrCat(OtherEndpoint(globals, what.from).host.empty() ? "--store " : "--host ",
                                     what.from, " "));
  }
  Bucket bucket(what.bucket);
  const absl::StatusOr<v1::RemoveImagesResponse> removed = BucketRemoval(bucket, output, what).Run();
  if (!removed.ok()) return output.Fail(removed.status());
  output.Json(*removed);
  output.Text(absl::StrCat("removed ", absl::StrJoin(removed->removed(), ", "), " from ", what.from, "\n"));
  return kDone;
}

}  // namespace rekindle::cli
