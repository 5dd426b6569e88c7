#include "base/message_text.h"

#include <google/protobuf/arena.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace rekindle {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::vector<const FieldDescriptor*> FieldsOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

}  // namespace

namespace {

// Field by field.
std::optional<std::string> FindNoText(const Message& message) {
  const Reflection* reflection = message.GetReflection();
  std::string scratch;
  for (const FieldDescriptor* field : FieldsOf(message)) {
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        std::optional<std::string> found =
            FindNoText(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                            : reflection->GetMessage(message, field));
        if (found) return found;
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string& text = field->is_repeated()
                                      ? reflection->GetRepeatedStringReference(message, field, i, &scratch)
                                      : reflection->GetStringReference(message, field, &scratch);
        if (ToUtf8(text) != text) return text;
      }
    }
  }
  return std::nullopt;
}

// What a reader takes, unlike the fields, needs no descriptors. They are made at first use, for all messages
// of a file, which takes milliseconds: as long as all else that a short command does.
bool IsRead(const Message& message) {
  const google::protobuf::LogSilencer of_what_is_no_text;
  google::protobuf::Arena memory;  // freed as one
  return message.New(&memory)->ParseFromString(message.SerializeAsString());
}

void Mend(Message* message) {
  const Reflection* reflection = message->GetReflection();
  for (const FieldDescriptor* field : FieldsOf(*message)) {
    const int count = field->is_repeated() ? reflection->FieldSize(*message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Mend(field->is_repeated() ? reflection->MutableRepeatedMessage(message, field, i)
                                  : reflection->MutableMessage(message, field));
      } else if (field->type() == FieldDescriptor::TYPE_STRING && field->is_repeated()) {
        std::string text = ToUtf8(reflection->GetRepeatedString(*message, field, i));
        reflection->SetRepeatedString(message, field, i, std::move(text));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        reflection->SetString(message, field, ToUtf8(reflection->GetString(*message, field)));
      }
    }
  }
}

}  // namespace

std::optional<std::string> FindWhatIsNoText(const Message& message) {
  constexpr size_t kCopied = size_t{1} << 20;
  if (message.ByteSizeLong() <= kCopied && IsRead(message)) return std::nullopt;
  return FindNoText(message);
}

bool IsText(const Message& message) { return !FindWhatIsNoText(message); }

void MakeText(Message* message) {
  // Most are, and a map that is touched is built anew.
  if (!IsText(*message)) Mend(message);
}

}  // namespace rekindle
