#include "cli/bucket_copies.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"
#include "cli/image_feed.h"
#include "cli/json.h"
#include "cli/progress_bar.h"

namespace rekindle::cli {
namespace {

constexpr int64_t kNanosOfMicro = 1000;
// A stream is longer than the pages of its image by what it says of them, and by the image's small files.
constexpr uint64_t kMostBeside = uint64_t{1} << 30;
// The tag of an image that is here for others to be taken in.
constexpr absl::string_view kLinkTag = "link-";
constexpr size_t kTagsNamed = 10;
// Whose jobs run now shows in the latest images.
constexpr size_t kMostLookedAt = 100;

std::string TagOf(const std::string& reference) {
  const size_t colon = reference.rfind(':');
  return colon == std::string::npos ? "" : reference.substr(colon + 1);
}

std::string ObjectIn(const std::string& name, const std::string& object) {
  return absl::StrCat(name, "/", object);
}

// One image of a bucket on its way into a store.
class Taking {
 public:
  Taking(Bucket& bucket, Client& client, const Output& output, std::string name)
      : bucket_(bucket), client_(client), output_(output), name_(std::move(name)) {}

  absl::StatusOr<v1::Image> Take(const BucketImage& image, const v1::ReceiveImageBegin& begin) {
    const std::string object = ObjectIn(name_, image.ImageObject());
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BucketTransfer> transfer, bucket_.Get(object));
    ProgressBar progress(STDERR_FILENO, !output_.json());
    std::unique_ptr<ImageReceiver> receiver =
        client_.ReceiveImage(begin, [&](const v1::Progress& now) { progress.Update(now); });
    const absl::Cleanup no_receiver = [&] {
      receiver.reset();
      progress.Clear();
    };
    RK_ASSIGN_OR_RETURN(const bool to_its_end, Feed(transfer->fd(), *receiver, [&](absl::Duration waited) {
                          return transfer->EndIfStalled(waited);
                        }));
    // What ended too early is rclone's to explain, not the image's.
    if (to_its_end) RK_RETURN_IF_ERROR(transfer->Finish());
    RK_ASSIGN_OR_RETURN(const v1::ReceiveImageResult received, receiver->Finish());
    if (!received.was_there()) bytes_ += image.bytes;
    if (IdOf(OriginOf(received.image())) != image.origin) {
      return absl::DataLossError(
          absl::StrCat("the object ", object, " holds another image than its name says (",
                       OriginOf(received.image()), "): it was taken in as ", received.image().reference()));
    }
    return received.image();
  }

  uint64_t bytes() const { return bytes_; }

 private:
  Bucket& bucket_;
  Client& client_;
  const Output& output_;
  const std::string name_;
  uint64_t bytes_ = 0;
};

std::string LinkReference(const std::string& name, const BucketImage& image) {
  return absl::StrCat(name, ":", kLinkTag, image.origin);
}

absl::Status NoSuchImage(const BucketImages& images, const std::string& image, const std::string& where) {
  std::vector<std::string> tags = images.Tags();
  const bool more = tags.size() > kTagsNamed;
  if (more) tags.resize(kTagsNamed);
  return absl::NotFoundError(
      absl::StrCat("there is no image ", image, " in ", where,
                   tags.empty() ? ", nor any other of this name"
                                : absl::StrCat("; of this name it has the tags ", absl::StrJoin(tags, ", "),
                                               more ? " and older ones" : "")));
}

// Else the newest image may be of any of them.
absl::Status CheckIsOfOneJob(Bucket& bucket, const std::string& name, const BucketImages& images,
                             const std::string& where) {
  std::vector<BucketImage> latest = images.complete();
  if (latest.size() > kMostLookedAt) latest.resize(kMostLookedAt);
  std::erase_if(latest, [&](const BucketImage& image) { return images.Chain(image.origin).empty(); });
  if (latest.size() < 2) return absl::OkStatus();
  std::vector<std::string> objects;
  for (const BucketImage& image : latest) objects.push_back(image.JsonObject());
  RK_ASSIGN_OR_RETURN(const std::string markers, bucket.Read(name, objects));
  const BucketImage* rival = NewestOfRival(latest, JobsOf(markers));
  if (rival == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the images of ", name, " in ", where, " are of jobs that ran at the same time: ", name, ":",
      latest.front().tag, " is the newest of one, ", name, ":", rival->tag,
      " of another. Name the one that is wanted, with its tag; and give these jobs different names of images "
      "(--image-name), or their copies different folders"));
}

}  // namespace

absl::Status BucketCopies::Copy(const v1::Image& image) {
  const std::string name = NameOf(image.reference());
  RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, bucket_.List(name));
  const BucketImages images(objects);
  if (options_.quiet) RK_RETURN_IF_ERROR(WarnOfOthers(image, images));
  BucketImage copy;
  copy.created_unix_ns = image.created_unix_ns() / kNanosOfMicro * kNanosOfMicro;
  copy.origin = IdOf(OriginOf(image));
  copy.tag = TagOf(image.reference());
  if (images.Has(copy.origin, copy.tag)) {
    if (!options_.quiet) TellWasThere(output_, options_.words, image);
    return absl::OkStatus();
  }
  std::optional<v1::Image> base;
  if (!options_.whole) {
    RK_ASSIGN_OR_RETURN(base, source_.BaseOf(image, [&](const std::string& origin) {
      return !images.Chain(IdOf(origin)).empty();
    }));
    // Else whole: what has changed since an older one would grow and grow.
    if (base && !images.MayBuildUpon(IdOf(OriginOf(*base)))) base.reset();
  }
  for (;; base.reset()) {
    v1::SendImageRequest request;
    request.set_image(RequestFor(image));
    if (base) request.set_since(base->digest());
    copy.base = base ? IdOf(OriginOf(*base)) : "";
    RK_ASSIGN_OR_RETURN(const v1::TransferResult result, Upload(request, ObjectIn(name, copy.ImageObject()),
                                                                image.logical_bytes() + kMostBeside));
    const std::string json = ToJson(result);
    RK_ASSIGN_OR_RETURN(const std::unique_ptr<BucketTransfer> marker,
                        bucket_.Put(ObjectIn(name, copy.JsonObject()), json.size()));
    marker->Write(json);
    RK_RETURN_IF_ERROR(marker->Finish());
    // Who copies there, too, may have removed meanwhile what this one builds upon.
    RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> now, bucket_.List(name));
    if (BucketImages(now).Has(copy.origin, copy.tag)) {
      Tell(output_, options_.words, result, false);
      return absl::OkStatus();
    }
    if (!base) {
      return absl::UnavailableError(
          absl::StrCat("the copy of ", image.reference(), " was put into ", bucket_.location(), "/", name,
                       " and is not there: what else removes objects of that folder?"));
    }
  }
}

absl::Status BucketCopies::WarnOfOthers(const v1::Image& image, const BucketImages& images) {
  std::set<std::string> now;
  for (const BucketImage& there : images.complete()) now.insert(there.origin);
  const std::optional<std::set<std::string>> before = std::exchange(seen_, now);
  if (!before || told_) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::set<std::string> origins, source_.Ours(image));
  for (const std::string& origin : origins) now.erase(IdOf(origin));
  const std::string name = NameOf(image.reference());
  for (const BucketImage& there : images.complete()) {
    if (!now.contains(there.origin) || before->contains(there.origin)) continue;
    told_ = true;
    output_.Warning(absl::StrCat(
        "another store copies images of ", name, " to ", bucket_.location(), ", too (", name, ":", there.tag,
        "): if they are of another job, give one of the two another --image-name, or its copies a folder of "
        "their own"));
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::TransferResult> BucketCopies::Upload(const v1::SendImageRequest& request,
                                                        const std::string& object, uint64_t most_bytes) {
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<BucketTransfer> transfer, bucket_.Put(object, most_bytes));
  ProgressBar progress(STDERR_FILENO, !output_.json());
  const absl::Cleanup cleared = [&] { progress.Clear(); };
  v1::TransferResult sent;
  bool taken = true;
  const absl::Status sending = from_.SendImage(request, [&](const v1::SendImageEvent& event) {
    if (event.has_progress()) progress.Update(event.progress());
    if (event.has_result()) sent = event.result();
    taken = event.data().empty() || transfer->Write(event.data());
    return taken;
  });
  // Not to its end: rclone must not take what came for all of it.
  if (!sending.ok() && taken) return sending;
  RK_RETURN_IF_ERROR(transfer->Finish());
  if (!taken)
    return absl::UnavailableError(absl::StrCat("rclone ended before all of ", object, " was written"));
  return sent;
}

absl::Status BucketCopies::Prune(const std::string& name, const v1::Image& sent) {
  if (options_.keep == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::set<std::string> origins, source_.Ours(sent));
  std::set<std::string> ours{IdOf(OriginOf(sent))};
  for (const std::string& origin : origins) ours.insert(IdOf(origin));
  RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, bucket_.List(name));
  return bucket_.Remove(name, BucketImages(objects).Superfluous(
                                  options_.keep, [&](const std::string& id) { return ours.contains(id); }));
}

absl::Status TakeFromBucket(Bucket& bucket, Client& client, const Output& output, const std::string& image,
                            const v1::ReceiveImageBegin& begin, const std::string& where,
                            const CopyWords& words) {
  const std::string name = NameOf(image), tag = TagOf(image);
  RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, bucket.List(name));
  const BucketImages images(objects);
  const BucketImage* wanted = images.Newest(tag);
  if (wanted == nullptr) return NoSuchImage(images, image, where);
  if (tag.empty()) RK_RETURN_IF_ERROR(CheckIsOfOneJob(bucket, name, images, where));
  v1::ReceiveImageBegin last = begin;
  if (last.reference().empty()) last.set_reference(absl::StrCat(name, ":", wanted->tag));

  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse here, ImagesIn(client));
  std::set<std::string> known;
  for (const v1::Image& one : here.images()) {
    known.insert(IdOf(OriginOf(one)));
    if (one.reference() != last.reference() || IdOf(OriginOf(one)) != wanted->origin) continue;
    TellWasThere(output, words, one);
    return absl::OkStatus();
  }

  const std::vector<BucketImage> chain = images.Chain(wanted->origin);
  size_t first = chain.size() - 1;
  while (first > 0 && !known.contains(chain[first].base)) --first;
  Taking taking(bucket, client, output, name);
  v1::TransferResult result;
  const auto take_from = [&](size_t link) -> absl::Status {
    for (; link + 1 < chain.size(); ++link) {
      v1::ReceiveImageBegin intermediate;
      intermediate.set_reference(LinkReference(name, chain[link]));
      RK_RETURN_IF_ERROR(taking.Take(chain[link], intermediate).status());
    }
    RK_ASSIGN_OR_RETURN(*result.mutable_image(), taking.Take(chain.back(), last));
    return absl::OkStatus();
  };
  absl::Status taken = take_from(first);
  // What is known may be another owner's.
  if (absl::IsFailedPrecondition(taken) && first > 0) taken = take_from(0);
  RK_RETURN_IF_ERROR(Annotate(taken, absl::StrCat("taking in ", image, " from ", where)));

  v1::RemoveImagesRequest links;
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse now, client.ListImages({}));
  for (const v1::Image& one : now.images()) {
    const bool link = std::any_of(chain.begin(), chain.end(), [&](const BucketImage& part) {
      return one.reference() == LinkReference(name, part);
    });
    if (link) links.add_images(one.reference());
  }
  if (links.images_size() > 0) RK_RETURN_IF_ERROR(client.RemoveImages(links).status());
  result.set_bytes(taking.bytes());
  Tell(output, words, result, false);
  return absl::OkStatus();
}

}  // namespace rekindle::cli
