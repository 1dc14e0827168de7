#include "eval/task.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

std::string failure(const std::string& text) {
  TemporaryFolder folder;
  const auto path = folder.write("skill.jsonl", text);
  try {
    read_tasks(path, 0);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

testing::AssertionResult fails_with(const std::string& text, const std::string& line, const std::string& reason) {
  const std::string message = failure(text);
  if (message.find("skill.jsonl:" + line) == std::string::npos || message.find(reason) == std::string::npos)
    return testing::AssertionFailure() << message;
  return testing::AssertionSuccess();
}

TEST(Task, FolderInNameOrderWithNamesFromFiles) {
  TemporaryFolder folder;
  folder.write("b.jsonl", R"({"prompt": "x", "answer": "y"})" "\n\n" R"({"prompt": [{"role": "user", "content": "q"}], "answer": "z", "id": 7})" "\n");
  folder.write("a.jsonl", R"({"prompt": [1, 2], "choices": [[3], [4, 5]], "answer": 1})");
  folder.write("notes.txt", "not a task");
  const std::vector<Task> tasks = read_tasks(folder.path(), 0);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].name, "a");
  EXPECT_EQ(tasks[0].questions[0].right, 1);
  EXPECT_EQ(tasks[1].questions.size(), 2u);
  EXPECT_EQ(tasks[1].questions[1].where, (folder.path() / "b.jsonl").string() + ":3");
  EXPECT_EQ(tasks[1].sampling.runs, 1);
  EXPECT_FALSE(is_tokenized(tasks));
}

TEST(Task, HeaderNamesAndSamples) {
  TemporaryFolder folder;
  const auto path = folder.write("f.jsonl",
                                 R"({"task": "math", "sampling": {"temperature": 0.8, "top_p": 0.95, "runs": 4}, "max_new_tokens": 9, "length_normalised": true})"
                                 "\n" R"({"prompt": "x", "answer": ""})");
  const Task task = read_tasks(path, 0).at(0);
  EXPECT_EQ(task.name, "math");
  EXPECT_EQ(task.sampling.temperature, 0.8);
  EXPECT_EQ(task.sampling.top_p, 0.95);
  EXPECT_EQ(task.sampling.runs, 4);
  EXPECT_EQ(task.max_new_tokens, 9);
  EXPECT_TRUE(task.length_normalised);
}

TEST(Task, LimitKeepsTheFirstAndTheHashSaysWhich) {
  TemporaryFolder folder;
  const auto path = folder.write("f.jsonl", R"({"prompt": "x", "answer": "1"})" "\n" R"({"prompt": "y", "answer": "2"})" "\n");
  const auto one = folder.write("g.jsonl", R"({"prompt": "x", "answer": "1"})");
  EXPECT_EQ(read_tasks(path, 1).at(0).questions.size(), 1u);
  EXPECT_EQ(read_tasks(path, 5).at(0).questions.size(), 2u);
  EXPECT_EQ(read_tasks(path, 1).at(0).hash, read_tasks(one, 0).at(0).hash);
  EXPECT_NE(read_tasks(path, 1).at(0).hash, read_tasks(path, 0).at(0).hash);
}

TEST(Task, MalformedLinesNameFileLineAndCause) {
  const std::string good = R"({"prompt": "x", "answer": "y"})" "\n";
  EXPECT_TRUE(fails_with(good + "{\"prompt\": ", "2", ""));
  EXPECT_TRUE(fails_with(good + "[1]", "2", "not a JSON object"));
  EXPECT_TRUE(fails_with(good + R"({"answer": "y"})", "2", "no \"prompt\""));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x"})", "2", "no \"answer\""));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x", "answer": 5})", "2", "\"answer\" is 5"));
  EXPECT_TRUE(fails_with(good + R"({"prompt": [{"role": "user"}], "answer": "y"})", "2", "\"prompt\""));
  EXPECT_TRUE(fails_with(good + R"({"prompt": [], "answer": "y"})", "2", "\"prompt\""));
  EXPECT_TRUE(fails_with(good + R"({"prompt": [-1], "answer": "y"})", "2", "\"prompt\""));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x", "choices": ["a"], "answer": 0})", "2", "at least two"));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x", "choices": ["a", ""], "answer": 0})", "2", "choice"));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x", "choices": ["a", "b"], "answer": 2})", "2", "0 to 1"));
  EXPECT_TRUE(fails_with(good + R"({"prompt": "x", "choices": ["a", "b"], "answer": "a"})", "2", "index"));
}

TEST(Task, MalformedHeaders) {
  EXPECT_TRUE(fails_with(R"({"smapling": {}})", "1", "did you mean \"sampling\""));
  EXPECT_TRUE(fails_with(R"({"sampling": {"temperatur": 1}})", "1", "did you mean \"temperature\""));
  EXPECT_TRUE(fails_with(R"({"sampling": {"runs": 4}})", "1", "temperature 0"));
  EXPECT_TRUE(fails_with(R"({"sampling": {"temperature": 1, "top_p": 0}})", "1", "top_p"));
  EXPECT_TRUE(fails_with(R"({"max_new_tokens": 1.5})", "1", "max_new_tokens"));
}

TEST(Task, EmptyOrAbsentTasksAreErrors) {
  TemporaryFolder folder;
  EXPECT_THROW(read_tasks(folder.path(), 0), DataError);
  EXPECT_THROW(read_tasks(folder.path() / "absent", 0), DataError);
  folder.write("a.jsonl", R"({"task": "a"})");
  EXPECT_THROW(read_tasks(folder.path(), 0), DataError);
  folder.write("a.jsonl", R"({"prompt": "x", "answer": "y"})");
  folder.write("b.jsonl", "{\"task\": \"a\"}\n" R"({"prompt": "x", "answer": "y"})");
  EXPECT_THROW(read_tasks(folder.path(), 0), DataError) << "two tasks of one name";
}

TEST(Task, IdsNeedNoTokenizerAndTextDoes) {
  TemporaryFolder folder;
  const Task ids = read_tasks(folder.write("i.jsonl", R"({"prompt": [1, 2], "answer": [3]})"), 0).at(0);
  EXPECT_TRUE(is_tokenized({ids}));
  EXPECT_EQ(tokenize(ids, nullptr, 10).at(0).answer, std::vector<int32_t>{3});
  EXPECT_THROW(tokenize(ids, nullptr, 3), DataError) << "an id outside the vocabulary";
  const Task text = read_tasks(folder.write("t.jsonl", R"({"prompt": [1, 2], "answer": "three"})"), 0).at(0);
  EXPECT_FALSE(is_tokenized({text}));
  EXPECT_THROW(tokenize(text, nullptr, 10), DataError);
}

}  // namespace
}  // namespace scalewright
