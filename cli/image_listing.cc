#include "cli/image_listing.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "cli/arguments.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"
#include "cli/copy_source.h"
#include "cli/endpoint.h"
#include "cli/exit_code.h"
#include "cli/table.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

// A listing of thousands of objects comes in parts, each of which takes a second.
constexpr absl::Duration kStorePatience = absl::Minutes(1), kBucketPatience = absl::Minutes(2);
constexpr size_t kLongestName = 200;
constexpr size_t kMostAsked = 100;

std::string ParentText(const v1::Image& image) {
  if (image.parent_digest().empty() || image.logical_bytes() == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(image.parent_bytes()) /
                                        static_cast<double>(image.logical_bytes()));
}

bool Matches(const v1::Image& image, const std::vector<std::string>& texts) {
  return texts.empty() || std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
           return absl::StrContains(image.reference(), text);
         });
}

v1::ListImagesResponse Chosen(v1::ListImagesResponse listed, const std::vector<std::string>& texts) {
  if (texts.empty()) return listed;
  v1::ListImagesResponse chosen;
  for (v1::Image& image : *listed.mutable_images()) {
    if (Matches(image, texts)) *chosen.add_images() = std::move(image);
  }
  return chosen;
}

// What is in none of the names.
void NoteMisses(const Output& output, const v1::ListImagesResponse& listed, const ImageListing& what) {
  for (const std::string& text : what.texts) {
    const bool found =
        std::any_of(listed.images().begin(), listed.images().end(),
                    [&](const v1::Image& image) { return absl::StrContains(image.reference(), text); });
    if (found) continue;
    const bool may_be_place = what.from.empty() && absl::StrContains(text, ":") && CheckHost(text).ok();
    output.Note(absl::StrCat(
        "rekindle: no image matches '", text, "'", what.from.empty() ? "" : absl::StrCat(" in ", what.from),
        may_be_place ? absl::StrCat(" (of a daemon there: 'rekindle ls --from ", text, "')") : "", "\n"));
  }
}

void Show(const Output& output, const v1::ListImagesResponse& listed, const ImageListing& what) {
  if (output.json()) {
    output.Json(listed);
  } else {
    Table table({{"IMAGE"},
                 {"DIGEST"},
                 {"CREATED"},
                 {"MEMORY", Align::kRight},
                 {"AS IN PARENT", Align::kRight},
                 {"STORED", Align::kRight}});
    const int64_t now = UnixNanos();
    for (const v1::Image& image : listed.images()) {
      table.AddRow({Shown(image.reference(), kLongestName), image.digest().substr(0, 19),
                    Age(image.created_unix_ns(), now), FormatBytes(image.logical_bytes()), ParentText(image),
                    FormatBytes(image.stored_bytes())});
    }
    output.Text(table.ToString());
  }
  NoteMisses(output, listed, what);
}

void WarnOfDamaged(const Output& output, const v1::ListImagesResponse& listed, absl::string_view how) {
  for (const v1::Image& image : listed.images()) {
    if (image.damaged()) output.Warning(absl::StrCat(image.reference(), how));
  }
}

// `ask` on a thread of its own, which is left alone where it takes longer: the file server of a store's
// folder may never answer.
absl::StatusOr<v1::ListImagesResponse> AskWithin(
    absl::Duration limit, const std::string& where,
    std::function<absl::StatusOr<v1::ListImagesResponse>()> ask) {
  struct Answer {
    absl::Mutex mutex;
    bool there = false;
    absl::StatusOr<v1::ListImagesResponse> images = v1::ListImagesResponse();
  };
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, ask = std::move(ask)] {
    absl::StatusOr<v1::ListImagesResponse> images = ask();
    absl::MutexLock lock(&answer->mutex);
    answer->images = std::move(images);
    answer->there = true;
  }).detach();
  absl::MutexLock lock(&answer->mutex);
  if (AwaitUntil(answer->mutex, absl::Condition(&answer->there), Deadline(limit)))
    return std::move(answer->images);
  return absl::DeadlineExceededError(absl::StrCat("listing the images in ", where,
                                                  ": it has not answered for ", absl::FormatDuration(limit),
                                                  ". See whether the file server, or the daemon, is there"));
}

absl::StatusOr<std::vector<BucketObject>> ObjectsIn(Bucket& bucket, const std::string& from) {
  absl::StatusOr<std::vector<BucketObject>> objects = bucket.ListImageObjects();
  if (absl::IsNotFound(objects.status())) {
    return absl::NotFoundError(absl::StrCat("there are no images in ", from, ": ", objects.status().message(),
                                            ". See whether that bucket and folder are right"));
  }
  return objects;
}

v1::ListImagesResponse AsListed(std::vector<v1::Image> images) {
  v1::ListImagesResponse listed;
  for (v1::Image& image : images) *listed.add_images() = std::move(image);
  return listed;
}

absl::StatusOr<v1::ListImagesResponse> AllElsewhere(const GlobalOptions& globals, const ImageListing& what) {
  if (!what.bucket.empty()) {
    Bucket bucket(what.bucket, kBucketPatience);
    RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, ObjectsIn(bucket, what.from));
    return AsListed(ImagesOfObjects(objects));
  }
  return AskWithin(
      kStorePatience, what.from,
      [endpoint = OtherEndpoint(globals, what.from)]() -> absl::StatusOr<v1::ListImagesResponse> {
        RK_ASSIGN_OR_RETURN(const std::unique_ptr<Client> there, Client::Open(endpoint));
        return there->ListImages({});
      });
}

// Those of which the labels are not known and not asked are left out. `copies`: what is there.
absl::StatusOr<std::vector<v1::Image>> WithLabels(Bucket& bucket, const std::string& name,
                                                  const std::vector<BucketImage>& copies,
                                                  const std::vector<v1::Image>& here,
                                                  std::vector<v1::Image> images) {
  std::map<std::string, const v1::Image*> known;
  for (const v1::Image& image : here) known.emplace(IdOf(OriginOf(image)), &image);
  std::vector<BucketImage> asked;
  std::set<BucketKey> keys;
  for (const BucketImage& copy : copies) {
    if (IsStrayLink(copy) || known.contains(copy.origin) || asked.size() == kMostAsked) continue;
    asked.push_back(copy);
    keys.insert(KeyOf(copy));
  }
  BucketMarkers markers;
  RK_RETURN_IF_ERROR(markers.Read(bucket, name, asked));
  std::vector<v1::Image> labelled;
  for (v1::Image& image : images) {
    const BucketKey key = KeyOf(image);
    const auto is_here = known.find(key.first);
    const v1::Image* const said = is_here != known.end() ? is_here->second : markers.Find(key);
    if (said == nullptr && !keys.contains(key)) continue;
    if (said != nullptr) {
      *image.mutable_labels() = said->labels();
      (*image.mutable_labels())[v1::kOriginLabel] = OriginOf(*said);
    }
    labelled.push_back(std::move(image));
  }
  return labelled;
}

absl::StatusOr<std::vector<v1::Image>> ImagesInBucket(const std::string& from, const std::string& location,
                                                      const std::string& name,
                                                      const std::vector<v1::Image>* here) {
  Bucket bucket(location, kBucketPatience);
  absl::StatusOr<std::vector<BucketObject>> objects = bucket.List(name);
  // Nothing has come of this name yet, if all of the place is not missing.
  if (absl::IsNotFound(objects.status())) {
    RK_RETURN_IF_ERROR(ObjectsIn(bucket, from).status());
    return std::vector<v1::Image>();
  }
  RK_RETURN_IF_ERROR(objects.status());
  const BucketImages copies(*objects);
  for (BucketObject& object : *objects) object.name = absl::StrCat(name, "/", object.name);
  std::vector<v1::Image> images = ImagesOfObjects(*objects);
  if (here == nullptr) return images;
  return WithLabels(bucket, name, copies.complete(), *here, std::move(images));
}

int ShowBucket(const Output& output, v1::ListImagesResponse listed, const ImageListing& what) {
  listed = Chosen(std::move(listed), what.texts);
  if (output.json()) {
    output.Json(listed);
  } else {
    Table table({{"IMAGE"}, {"TAKEN"}, {"SIZE THERE", Align::kRight}});
    const int64_t now = UnixNanos();
    for (const v1::Image& image : listed.images()) {
      table.AddRow({Shown(image.reference(), kLongestName), Age(image.created_unix_ns(), now),
                    FormatBytes(image.stored_bytes())});
    }
    output.Text(table.ToString());
  }
  WarnOfDamaged(output, listed,
                absl::StrCat(" can't be had from ", what.from, ": what it builds upon is not there"));
  NoteMisses(output, listed, what);
  return kDone;
}

}  // namespace

std::vector<v1::Image> ImagesOfObjects(const std::vector<BucketObject>& objects) {
  std::map<std::string, std::vector<BucketObject>> by_name;
  for (const BucketObject& object : objects) {
    const size_t slash = object.name.rfind('/');
    if (slash == std::string::npos || slash == 0) continue;
    BucketObject inside = object;
    inside.name = object.name.substr(slash + 1);
    by_name[object.name.substr(0, slash)].push_back(std::move(inside));
  }
  std::vector<v1::Image> images;
  for (const auto& [name, inside] : by_name) {
    const BucketImages there(inside);
    std::set<std::string> tags;
    for (const bool usable : {true, false}) {
      for (const BucketImage& copy : there.complete()) {
        if (IsStrayLink(copy) || there.HasChain(copy.origin) != usable || !tags.insert(copy.tag).second)
          continue;
        v1::Image& image = images.emplace_back();
        image.set_reference(absl::StrCat(name, ":", copy.tag));
        image.set_created_unix_ns(copy.created_unix_ns);
        image.set_stored_bytes(there.BytesOf(copy));
        image.set_damaged(!usable);
        (*image.mutable_labels())[v1::kOriginLabel] = absl::StrCat("sha256:", copy.origin);
      }
    }
  }
  std::stable_sort(images.begin(), images.end(), [](const v1::Image& a, const v1::Image& b) {
    return a.created_unix_ns() > b.created_unix_ns();
  });
  return images;
}

int ListImages(Client& client, const Output& output, const ImageListing& what) {
  v1::ListImagesRequest request;
  if (what.texts.size() == 1) request.set_name_contains(what.texts.front());
  absl::StatusOr<v1::ListImagesResponse> listed = client.ListImages(request);
  if (!listed.ok()) return output.Fail(listed.status());
  const v1::ListImagesResponse shown = Chosen(*std::move(listed), what.texts);
  Show(output, shown, what);
  WarnOfDamaged(output, shown,
                " can't be restored whole: the disk has damaged what it needs ('rekindle stats' tells an "
                "administrator where)");
  return kDone;
}

absl::StatusOr<std::vector<v1::Image>> ImagesElsewhere(const GlobalOptions& globals, const std::string& from,
                                                       const std::string& bucket, const std::string& name,
                                                       const std::vector<v1::Image>* here) {
  if (!bucket.empty()) return ImagesInBucket(from, bucket, name, here);
  const auto ask = [endpoint = OtherEndpoint(globals, from),
                    name]() -> absl::StatusOr<v1::ListImagesResponse> {
    RK_ASSIGN_OR_RETURN(const std::unique_ptr<Client> there, Client::Open(endpoint));
    RK_ASSIGN_OR_RETURN(std::vector<v1::Image> images, CopySource(*there).ImagesOf(name));
    return AsListed(std::move(images));
  };
  RK_ASSIGN_OR_RETURN(v1::ListImagesResponse listed, AskWithin(kStorePatience, from, ask));
  return std::vector<v1::Image>(std::make_move_iterator(listed.mutable_images()->begin()),
                                std::make_move_iterator(listed.mutable_images()->end()));
}

int ListImagesElsewhere(const GlobalOptions& globals, const Output& output, const ImageListing& what) {
  absl::StatusOr<v1::ListImagesResponse> listed = AllElsewhere(globals, what);
  if (!listed.ok()) return output.Fail(listed.status());
  if (!what.bucket.empty()) return ShowBucket(output, *std::move(listed), what);
  const v1::ListImagesResponse shown = Chosen(*std::move(listed), what.texts);
  Show(output, shown, what);
  WarnOfDamaged(
      output, shown,
      absl::StrCat(" in ", what.from, " can't be restored whole: the disk there has damaged what it needs"));
  return kDone;
}

}  // namespace rekindle::cli
