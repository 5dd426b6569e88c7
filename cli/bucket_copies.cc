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
#include "absl/time/time.h"
#include "base/status.h"
#include "base/uuid.h"
#include "cli/bucket_images.h"
#include "cli/bucket_jobs.h"
#include "cli/bucket_upload.h"
#include "cli/image_descent.h"
#include "cli/image_feed.h"
#include "cli/json.h"
#include "cli/progress_bar.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::cli {
namespace {

constexpr int64_t kNanosOfMicro = 1000;
// A stream is longer than the pages of its image by what it says of them, and by the image's small files.
constexpr uint64_t kMostBeside = uint64_t{1} << 30;
constexpr size_t kTagsNamed = 10;
// Whose jobs run now shows in the latest images.
constexpr size_t kMostLookedAt = 100;

std::string ObjectIn(const std::string& name, const std::string& object) {
  return absl::StrCat(name, "/", object);
}

// None where there is no such folder yet.
absl::StatusOr<std::vector<BucketObject>> ObjectsOf(Bucket& bucket, const std::string& name,
                                                    Bucket::Times times = Bucket::Times::kUnknown) {
  absl::StatusOr<std::vector<BucketObject>> objects = bucket.List(name, times);
  if (absl::IsNotFound(objects.status())) return std::vector<BucketObject>();
  return objects;
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
    any_ = true;
    if (IdOf(OriginOf(received.image())) != image.origin) {
      return absl::DataLossError(
          absl::StrCat("the object ", object, " holds another image than its name says (",
                       OriginOf(received.image()), "): it was taken in as ", received.image().reference()));
    }
    return received.image();
  }

  uint64_t bytes() const { return bytes_; }
  // Is one of them here?
  bool any() const { return any_; }

 private:
  Bucket& bucket_;
  Client& client_;
  const Output& output_;
  const std::string name_;
  uint64_t bytes_ = 0;
  bool any_ = false;
};

// Everybody has his own: another's is not to be built upon.
std::string LinkReference(const BucketImage& image) {
  return absl::StrCat(v1::kCopyLinkName, image.origin, ":", ::getuid());
}

// What may be here for the images of this chain to be taken in, by an older version's names, too.
std::set<std::string> LinksOf(const std::string& name, const std::vector<BucketImage>& chain) {
  std::set<std::string> links;
  for (const BucketImage& image : chain) {
    links.insert(LinkReference(image));
    links.insert(absl::StrCat(name, ":", v1::kStrayCopyLinkTag, image.origin));
  }
  return links;
}

absl::Status RemoveAll(Client& client, const std::set<std::string>& links) {
  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse here, ImagesIn(client));
  for (const v1::Image& one : here.images()) {
    if (!links.contains(one.reference())) continue;
    v1::RemoveImagesRequest request;
    request.add_images(RequestFor(one));
    // Others may take in images of the same chain.
    const absl::Status removed = client.RemoveImages(request).status();
    if (!absl::IsNotFound(removed)) RK_RETURN_IF_ERROR(removed);
  }
  return absl::OkStatus();
}

absl::Status NoSuchFolder(const absl::Status& why, const std::string& image, const std::string& where) {
  return absl::NotFoundError(absl::StrCat("there is no image ", image, " in ", where,
                                          ", nor any other of this name: ", why.message(),
                                          ". See whether that bucket and folder are right"));
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
  std::erase_if(
      latest, [&](const BucketImage& image) { return !images.HasChain(image.origin) || IsStrayLink(image); });
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
  has_part_ = left_parts_ = false;
  after_copy_.reset();
  const absl::Status copied = CopyOnce(image);
  if (copied.ok() || !has_part_) return copied;
  left_parts_ = IsWorthAnAttempt(copied);
  return WithMessage(copied, absl::StrCat(copied.message(),
                                          ". What has arrived there stays for the next attempt; a day "
                                          "later 'rekindle prune --from' removes it"));
}

absl::Status BucketCopies::CopyOnce(const v1::Image& image) {
  const std::string name = NameOf(image.reference());
  RK_ASSIGN_OR_RETURN(const std::vector<BucketObject> objects, ObjectsOf(bucket_, name));
  const BucketImages images(objects);
  // What only serves a warning is no reason to have no copy.
  if (options_.quiet) WarnOfOthers(image, images).IgnoreError();
  BucketImage copy;
  copy.origin = IdOf(OriginOf(image));
  copy.tag = TagOf(image.reference());
  if (images.Has(copy.origin, copy.tag)) {
    if (!options_.quiet) TellWasThere(output_, options_.words, image);
    return absl::OkStatus();
  }
  RK_ASSIGN_OR_RETURN(copy.created_unix_ns, CreatedFor(image, images));
  std::optional<v1::Image> base;
  if (!options_.whole) {
    RK_ASSIGN_OR_RETURN(base, source_.BaseOf(image, [&](const std::string& origin) {
      return images.HasChain(IdOf(origin));
    }));
    // Else whole: what has changed since an older one would grow and grow.
    if (base && !images.MayBuildUpon(IdOf(OriginOf(*base)))) base.reset();
  }
  for (bool anew = false;; anew = true) {
    v1::SendImageRequest request;
    request.set_image(RequestFor(image));
    if (base && !anew) request.set_since(base->digest());
    copy.base = base && !anew ? IdOf(OriginOf(*base)) : "";
    request.mutable_parts()->set_bytes(CopyPartBytes());
    for (const BucketImage& there : images.complete()) {
      if (!anew && IsStrayLink(there) && images.HasChain(there.origin))
        request.mutable_parts()->add_there(there.origin);
    }
    RK_ASSIGN_OR_RETURN(const v1::TransferResult result,
                        Put(request, name, &copy, image.logical_bytes() + kMostBeside));
    // Who copies there, too, may have removed meanwhile what this one builds upon.
    RK_ASSIGN_OR_RETURN(
        std::vector<BucketObject> now,
        ObjectsOf(bucket_, name, options_.keep == 0 ? Bucket::Times::kUnknown : Bucket::Times::kAsked));
    if (BucketImages(now).Has(copy.origin, copy.tag)) {
      after_copy_ = std::move(now);
      Tell(output_, options_.words, result, false);
      return absl::OkStatus();
    }
    if (anew || copy.base.empty()) {
      return absl::UnavailableError(
          absl::StrCat("the copy of ", image.reference(), " was put into ", bucket_.location(), "/", name,
                       " and is not there: what else removes objects of that folder?"));
    }
    RK_RETURN_IF_ERROR(bucket_.Remove(name, {copy.JsonObject(), copy.ImageObject()}));
  }
}

absl::StatusOr<int64_t> BucketCopies::CreatedFor(const v1::Image& image, const BucketImages& images) {
  RK_ASSIGN_OR_RETURN(const CopySource::Order order, source_.OrderAround(image));
  std::set<std::string> earlier, later;
  for (const std::string& origin : order.earlier) earlier.insert(IdOf(origin));
  for (const std::string& origin : order.later) later.insert(IdOf(origin));
  int64_t created = image.created_unix_ns() / kNanosOfMicro * kNanosOfMicro;
  // What others have copied there keeps its place, for better or worse: a node that comes back has old images
  // that nobody has copied yet.
  for (const BucketImage& there : images.complete()) {
    if (earlier.contains(there.origin)) created = std::max(created, there.created_unix_ns + kNanosOfMicro);
  }
  for (const BucketImage& there : images.complete()) {
    if (later.contains(there.origin)) created = std::min(created, there.created_unix_ns - kNanosOfMicro);
  }
  return created;
}

absl::StatusOr<v1::TransferResult> BucketCopies::Put(const v1::SendImageRequest& request,
                                                     const std::string& name, BucketImage* copy,
                                                     uint64_t most_bytes) {
  BucketUpload upload(bucket_, name, *copy, most_bytes);
  ProgressBar progress(STDERR_FILENO, !output_.json());
  const absl::Cleanup cleared = [&] { progress.Clear(); };
  v1::TransferResult sent;
  absl::Status put;
  bool taken = true;
  const absl::Status sending = SendWithParts(from_, request, [&](const v1::SendImageEvent& event) {
    if (event.has_progress()) progress.Update(event.progress());
    if (event.has_result()) sent = event.result();
    if (event.has_part()) {
      for (const std::string& there : request.parts().there())
        has_part_ = has_part_ || there == IdOf(event.part().base());
      put = upload.Begin(event.part());
      has_part_ = has_part_ || upload.put_part();
    }
    taken = event.data().empty() || upload.Write(event.data());
    return put.ok() && taken;
  });
  RK_RETURN_IF_ERROR(put);
  // Not to its end: rclone must not take what came for all of it.
  if (!sending.ok() && taken) return sending;
  RK_RETURN_IF_ERROR(upload.Complete(sent));
  *copy = upload.image();
  return sent;
}

absl::Status BucketCopies::WarnOfOthers(const v1::Image& image, const BucketImages& images) {
  std::vector<std::string> there;
  for (const BucketImage& one : images.complete()) {
    if (!IsStrayLink(one)) there.push_back(one.origin);
  }
  RK_ASSIGN_OR_RETURN(const std::set<std::string> origins, source_.Ours(image));
  std::set<std::string> ours;
  for (const std::string& origin : origins) ours.insert(IdOf(origin));
  const std::set<std::string> foreign = other_starts_.Look(there, ours);
  if (foreign.empty()) return absl::OkStatus();
  const std::string name = NameOf(image.reference());
  std::vector<BucketImage> come;
  for (const BucketImage& one : images.complete()) {
    if (foreign.contains(one.origin)) come.push_back(one);
  }
  RK_RETURN_IF_ERROR(markers_.Read(bucket_, name, come));
  bool is_same_job = false;
  for (const BucketImage& one : come) {
    const v1::Image* const said = markers_.Find(KeyOf(one));
    is_same_job = (said != nullptr && other_starts_.Note(image, *said)) || is_same_job;
  }
  if (is_same_job || std::exchange(told_, true)) return absl::OkStatus();
  output_.Warning(absl::StrCat(
      "another store copies images of ", name, " to ", bucket_.location(), ", too (", name, ":",
      come.front().tag,
      "): if they are of another job, give one of the two another --image-name, or its copies a folder of "
      "their own"));
  return absl::OkStatus();
}

absl::Status BucketCopies::Check(const std::string& name) {
  // Where that is a folder which is not there, it is not to be made.
  RK_RETURN_IF_ERROR(ObjectsOf(bucket_, name).status());
  constexpr absl::string_view kContent = "Rekindle has looked whether copies can be written here.\n";
  const std::string object = absl::StrCat("check-", NewUuid());
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<BucketTransfer> transfer,
                      bucket_.Put(ObjectIn(name, object), kContent.size()));
  transfer->Write(kContent);
  RK_RETURN_IF_ERROR(transfer->Finish());
  return bucket_.Remove(name, {object});
}

absl::Status BucketCopies::Prune(const std::string& name, const v1::Image& sent,
                                 std::optional<std::vector<std::string>>* there) {
  if (options_.keep == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::set<std::string> origins, source_.Ours(sent));
  std::map<std::string, std::string> ours{{IdOf(OriginOf(sent)), OriginOf(sent)}};
  for (const std::string& origin : origins) ours.emplace(IdOf(origin), origin);
  std::optional<std::vector<BucketObject>> listed = std::exchange(after_copy_, std::nullopt);
  if (!listed) {
    RK_ASSIGN_OR_RETURN(listed, ObjectsOf(bucket_, name, Bucket::Times::kAsked));
  }
  const std::vector<BucketObject>& objects = *listed;
  const BucketImages images(objects);
  // Else `sent` has come from no other start, or what it has come from is not for this node to tell: it has
  // only been taken in here.
  const bool has_past =
      sent.labels().contains(v1::kSupervisedAncestorsLabel) && !sent.labels().contains(v1::kOriginLabel);
  markers_.Keep(images.complete());
  markers_.Note(sent);
  // What can't be asked now stays until it can be.
  if (has_past || sent.labels().contains(v1::kSupervisedSoundLabel))
    markers_.Read(bucket_, name, images.complete(), kMostLookedAt).IgnoreError();
  using Claim = BucketImages::Claim;
  std::map<BucketKey, Claim> by_labels;
  std::vector<v1::Image> earlier, known;
  for (const BucketImage& image : images.complete()) {
    if (IsStrayLink(image) || !images.HasChain(image.origin)) continue;
    const BucketKey key = KeyOf(image);
    const v1::Image* const said = markers_.Find(key);
    if (said != nullptr) known.push_back(*said);
    if (!has_past) continue;
    // Ours, or of an earlier start: the next time.
    if (said == nullptr) {
      by_labels[key] = Claim::kStays;
    } else if (IsOfEarlierStart(*said, sent)) {
      by_labels[key] = Claim::kStays;
      earlier.push_back(*said);
    } else if (IsInPastOf(*said, sent)) {
      by_labels[key] = Claim::kCounted;
    }
  }
  for (const v1::Image& image : BeyondKeptOfEarlier(std::move(earlier), options_.keep))
    by_labels[KeyOf(image)] = Claim::kGoes;
  const auto is_ours = [&](const BucketImage& image) {
    if (image.origin == IdOf(OriginOf(sent)) && image.tag == TagOf(sent.reference())) return true;
    const auto our = ours.find(image.origin);
    return our != ours.end() && source_.IsOurName(our->second, image.tag) &&
           !(has_past && source_.CameHere(our->second));
  };
  const auto claim = [&](const BucketImage& image) {
    const auto labels_say = by_labels.find(KeyOf(image));
    if (labels_say != by_labels.end()) return labels_say->second;
    return is_ours(image) || (IsStrayLink(image) && ours.contains(image.origin)) ? Claim::kCounted
                                                                                 : Claim::kStays;
  };
  const auto find_superfluous = [&] {
    return images.Superfluous(options_.keep, IdOf(OriginOf(sent)), claim, UnfinishedBefore(objects));
  };
  std::vector<std::string> superfluous = find_superfluous();
  // Where it is one of those that stay anyhow it counts as that.
  std::set<std::string> going(superfluous.begin(), superfluous.end());
  for (const v1::Image& stays : CopiesToGoBackTo(known, sent)) {
    const BucketKey key = KeyOf(stays);
    for (const BucketImage& image : images.complete()) {
      if (KeyOf(image) == key && going.contains(image.JsonObject())) by_labels[key] = Claim::kStays;
    }
  }
  superfluous = find_superfluous();
  going = {superfluous.begin(), superfluous.end()};
  const absl::Status removed = bucket_.Remove(name, superfluous);
  // What could not be removed now is to be known to whoever copies next. What others have copied does not
  // become ours by that.
  there->emplace();
  for (auto image = images.complete().rbegin(); image != images.complete().rend(); ++image) {
    if (is_ours(*image) && (!removed.ok() || !going.contains(image->JsonObject())))
      (*there)->push_back(ours.at(image->origin));
  }
  return removed;
}

absl::Status TakeFromBucket(Bucket& bucket, Client& client, const Output& output, const std::string& image,
                            const v1::ReceiveImageBegin& begin, const std::string& where,
                            const CopyWords& words) {
  const std::string name = NameOf(image), tag = TagOf(image);
  const absl::StatusOr<std::vector<BucketObject>> objects = bucket.List(name);
  if (absl::IsNotFound(objects.status())) return NoSuchFolder(objects.status(), image, where);
  RK_RETURN_IF_ERROR(objects.status());
  const BucketImages images(*objects);
  const BucketImage* wanted = images.Newest(tag);
  if (wanted == nullptr) return NoSuchImage(images, image, where);
  if (tag.empty()) RK_RETURN_IF_ERROR(CheckIsOfOneJob(bucket, name, images, where));
  v1::ReceiveImageBegin last = begin;
  if (last.reference().empty()) last.set_reference(absl::StrCat(name, ":", wanted->tag));
  if (!absl::StrContains(last.reference(), ':'))
    last.set_reference(absl::StrCat(last.reference(), ":latest"));
  std::vector<BucketImage> chain = images.Chain(wanted->origin);
  // Under another name the same image has other labels.
  if (chain.back().base == wanted->base) chain.back() = *wanted;

  RK_ASSIGN_OR_RETURN(const v1::ListImagesResponse here, ImagesIn(client));
  std::set<std::string> links = LinksOf(name, chain);
  links.erase(last.reference());
  bool has_links = false;
  std::set<std::string> known;
  for (const v1::Image& one : here.images()) {
    known.insert(IdOf(OriginOf(one)));
    has_links = has_links || links.contains(one.reference());
    if (one.reference() != last.reference()) continue;
    if (IdOf(OriginOf(one)) == wanted->origin) {
      RK_RETURN_IF_ERROR(RemoveAll(client, links));
      TellWasThere(output, words, one);
      return absl::OkStatus();
    }
    if (!last.replace()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "taking in ", image, " from ", where, ": there is an image ", one.reference(), " already (",
          one.digest(), "): choose another name, or take this one with --replace"));
    }
  }

  size_t first = chain.size() - 1;
  while (first > 0 && !known.contains(chain[first].base)) --first;
  Taking taking(bucket, client, output, name);
  v1::TransferResult result;
  const auto take_from = [&](size_t link) -> absl::Status {
    for (; link + 1 < chain.size(); ++link) {
      v1::ReceiveImageBegin intermediate;
      intermediate.set_reference(LinkReference(chain[link]));
      RK_RETURN_IF_ERROR(taking.Take(chain[link], intermediate).status());
    }
    RK_ASSIGN_OR_RETURN(*result.mutable_image(), taking.Take(chain.back(), last));
    return absl::OkStatus();
  };
  absl::Status taken = take_from(first);
  // What is known may be another owner's, or may have gone with what somebody else has taken in.
  if (absl::IsFailedPrecondition(taken) && chain.size() > 1) taken = take_from(0);
  if (!taken.ok()) {
    taken = Annotate(taken, absl::StrCat("taking in ", image, " from ", where));
    if (IsWorthAnAttempt(taken)) {
      if (!taking.any() && !has_links) return taken;
      return WithMessage(
          taken,
          absl::StrCat(taken.message(), ". What it builds upon stays for the next attempt, as ",
                       v1::kCopyLinkName, "…; a day later 'rekindle gc' removes what is left of that"));
    }
    RemoveAll(client, links).IgnoreError();
    return taken;
  }
  RK_RETURN_IF_ERROR(RemoveAll(client, links));
  result.set_bytes(taking.bytes());
  Tell(output, words, result, false);
  return absl::OkStatus();
}

}  // namespace rekindle::cli
